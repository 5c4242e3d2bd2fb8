/** Categories that are told apart by their form. */

/** Calls of a device's runtime or driver: CUDA, ROCm, XPU, ... */
export function is_launch_category(category: string): boolean {
  return /_(runtime|driver)$/.test(category)
}
