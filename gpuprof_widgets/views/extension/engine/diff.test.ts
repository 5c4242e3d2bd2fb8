import assert from "node:assert/strict"
import {test} from "node:test"

import {change_of, lay_out, paired_tree, path_name, type DiffNode} from "./diff"
import {flame} from "./flame"
import {random_store, RANDOM_STORES, SEEDS, store_of} from "./testing/traces"

function by_path(nodes: DiffNode[]): Map<string, DiffNode> {
  const path = (id: number): string => id <= 0 ? "" : `${path(nodes[id].parent)}/${nodes[id].name}`
  return new Map(nodes.map((node) => [path(node.id), node]))
}

const A = store_of([
  {name: "step", ts: 0, dur: 50, category: "user_annotation"},
  {name: "mm", ts: 5, dur: 10},
  {name: "old", ts: 20, dur: 4},
])
const B = store_of([
  {name: "step", ts: 0, dur: 90, category: "user_annotation"},
  {name: "new", ts: 2, dur: 7},
  {name: "mm", ts: 15, dur: 30},
])

test("every path of either run has its times in both", () => {
  const nodes = by_path(paired_tree(flame(A, A.whole, "ops"), flame(B, B.whole, "ops")))
  const times = Object.fromEntries([...nodes].map(([path, {total, self}]) => [path, [total, self]]))
  assert.deepEqual(times, {
    "": [[50, 90], [0, 0]],
    "/step": [[50, 90], [36, 53]],
    "/step/mm": [[10, 30], [10, 30]],
    "/step/old": [[4, 0], [4, 0]],
    "/step/new": [[0, 7], [0, 7]],
  })
  assert.equal(change_of(nodes.get("/step/old")!), -1)
  assert.equal(change_of(nodes.get("/step/new")!), 1)
  assert.equal(change_of(nodes.get("/step/mm")!), 20/30)
  assert.equal(nodes.get("/step")!.width, 53 + 30 + 4 + 7)
})

test("children fit into their parent", () => {
  for (const seed of SEEDS) {
    const [a, b] = [random_store(seed), random_store(seed + 1)]
    const nodes = paired_tree(flame(a, a.whole, "ops"), flame(b, b.whole, "ops"))
    lay_out(nodes)
    for (const {id, x0, x1} of nodes) {
      let x = x0
      for (const child of nodes.filter(({parent}) => parent == id).sort((a, b) => a.x0 - b.x0 || a.x1 - b.x1)) {
        assert.ok(Math.abs(child.x0 - x) < 1e-9)
        x = child.x1
      }
      assert.ok(x <= x1 + 1e-9)
    }
  }
})

test("a run beside itself has no difference, and its widths are its times", () => {
  for (const store of RANDOM_STORES) {
    const tree = flame(store, store.whole, "ops")
    const nodes = paired_tree(tree, tree)
    assert.equal(nodes.length, tree.length)
    for (const node of nodes) {
      assert.equal(change_of(node), 0)
      assert.equal(node.width, node.total[0])
      assert.equal(node.nodes[0], node.nodes[1])
    }
  }
})

test("runs of different lengths are scaled", () => {
  const nodes = by_path(paired_tree(flame(A, A.whole, "ops"), flame(B, B.whole, "ops"), [1/2, 1/3]))
  assert.deepEqual(nodes.get("/step/mm")!.total, [5, 10])
})

test("lines and frames that moved are the same, ops that differ in a number are not", () => {
  assert.equal(path_name("3: y = f(x)", "cell_line"), "y = f(x)")
  assert.equal(path_name("train.py(31): step", "python_function"), "train.py: step")
  assert.equal(path_name("aten::conv2d", "cpu_op"), "aten::conv2d")
})
