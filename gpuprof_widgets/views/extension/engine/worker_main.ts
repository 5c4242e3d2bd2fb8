/** The script of the worker: what build.sh bundles into `worker_script.ts`. */

import {worker_of, type FromWorker, type ToWorker} from "./worker"

/** A worker's own global scope, of which the page's types know nothing. */
const scope = self as unknown as {postMessage: (message: FromWorker) => void, onmessage: (event: {data: ToWorker}) => void}
const take = worker_of((message) => scope.postMessage(message))
scope.onmessage = ({data}) => take(data)
