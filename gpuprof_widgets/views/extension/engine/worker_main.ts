/** The script of the worker: what build.sh bundles into `worker_script.ts`. */

import {worker_of, type Post, type ToWorker} from "./worker"

/** A worker's own global scope, of which the page's types know nothing. */
const scope = self as unknown as {postMessage: Post, onmessage: (event: {data: ToWorker}) => void}
const take = worker_of((message, transfer) => scope.postMessage(message, transfer))
scope.onmessage = ({data}) => take(data)
