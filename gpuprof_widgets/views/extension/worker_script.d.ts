/** The bundled text of engine/worker_main.ts; build.sh makes the module. */
export const WORKER_SCRIPT: string
