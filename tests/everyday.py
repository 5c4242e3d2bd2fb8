"""Cells as people write them every day, and which findings are right about each.

What is still wrong or missing in what findings say of such cells is in docs/judged.md.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Everyday:
    """A cell to profile, after the cell that makes what it needs.

    ``says``: rules that must speak; ``may``: others that are right as well where they speak, which
    depends on the machine. Any other rule would be wrong. ``after`` puts back what the first cell
    changed for the whole process.
    """

    name: str
    before: str
    cell: str
    says: tuple[str, ...] = ()
    may: tuple[str, ...] = ()
    after: str = ""


ALWAYS = ("overhead", "lines", "cpu_ops", "cpu_threads", "critical_path", "python_time")
"""What may be said of any cell: what recording cost, and where its time went."""

CELLS = [
    Everyday(
        "training an MLP on a TensorDataset",
        """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
data = TensorDataset(torch.randn(1024, 64), torch.randint(0, 10, (1024,)))
loader = DataLoader(data, batch_size=128, shuffle=True)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
""",
        """
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
""",
        (),
        ("dataloader", "backward", "optimizer_loops", "garbage_collection"),
    ),
    Everyday(
        "training a CNN, with loss.item() in every step",
        """
import torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
images, labels = torch.randn(16, 32, 3, 32, 32), torch.randint(0, 10, (16, 32))
""",
        """
running = 0.0
for x, y in zip(images, labels):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    running += loss.item()
print(running)
""",
        (),
        ("backward",),
    ),
    Everyday(
        "evaluation that forgot torch.no_grad",
        """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 10)).eval()
batches = torch.randn(20, 256, 256)
""",
        """
correct = 0
for x in batches:
    correct += int((model(x).argmax(1) == 0).sum())
correct
""",
        ("without_no_grad",),
    ),
    Everyday(
        "evaluation under torch.inference_mode",
        """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 10)).eval()
batches = torch.randn(20, 256, 256)
""",
        """
with torch.inference_mode():
    predicted = torch.cat([model(x).argmax(1) for x in batches])
predicted.shape
""",
    ),
    Everyday(
        "a transformer encoder, forward and backward",
        """
import torch
from torch import nn
torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
encoder = nn.TransformerEncoder(layer, 3)
tokens = torch.randn(16, 64, 128)
optimizer = torch.optim.AdamW(encoder.parameters())
""",
        """
for _ in range(4):
    optimizer.zero_grad(set_to_none=True)
    encoder(tokens).square().mean().backward()
    torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
    optimizer.step()
""",
        (),
        ("backward",),
    ),
    Everyday(
        "an LSTM unrolled by hand",
        """
import torch
from torch import nn
torch.manual_seed(0)
cell, head = nn.LSTMCell(64, 128), nn.Linear(128, 32)
sequence = torch.randn(200, 16, 64)
""",
        """
h = c = torch.zeros(16, 128)
outputs = []
for x in sequence:
    h, c = cell(x, (h, c))
    outputs.append(head(h))
loss = torch.stack(outputs).square().mean()
loss.backward()
""",
        (),
        ("backward", "loop_indexing"),
    ),
    Everyday(
        "pandas only",
        """
import numpy as np
import pandas as pd
import torch
rng = np.random.default_rng(0)
frame = pd.DataFrame({"user": rng.integers(0, 5000, 300_000), "value": rng.random(300_000)})
""",
        """
means = frame.groupby("user")["value"].agg(["mean", "std", "count"])
frame["scaled"] = frame["value"] / frame.groupby("user")["value"].transform("max")
frame.sort_values("scaled").head()
""",
    ),
    Everyday(
        "imports",
        "",
        """
import json
import torch
import fractions
from torch import nn
""",
    ),
    Everyday(
        "definitions",
        "import torch\nfrom torch import nn",
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x)

def train(model, data):
    for x in data:
        model(x)
""",
    ),
    Everyday(
        "tokenising in a Python loop, then an embedding",
        """
import torch
from torch import nn
texts = ["the quick brown fox jumps over the lazy dog " * 40] * 200
words = {word: i for i, word in enumerate(sorted(set(texts[0].split())))}
embedding = nn.EmbeddingBag(len(words), 32)
def tokenise(text):
    found = []
    for word in text.split():
        word = word.strip(".,").lower()
        if word in words:
            found.append(words[word])
    return found
""",
        """
ids = torch.tensor([tokenise(text) for text in texts])
with torch.no_grad():
    vectors = embedding(ids)
""",
        ("lines",),
    ),
    Everyday(
        "many small objects kept, so that the garbage collector runs",
        "import torch\nkept = []",
        """
for i in range(150_000):
    kept.append({"id": i, "box": [i, i + 1], "tags": (str(i), [])})
scores = torch.tensor([one["id"] for one in kept]).float().mean()
""",
        ("garbage_collection",),
        after="kept.clear()",
    ),
    Everyday(
        "a checkpoint in every step",
        """
import tempfile
from pathlib import Path
import torch
from torch import nn
folder = Path(tempfile.mkdtemp())
model = nn.Linear(1024, 1024)
optimizer = torch.optim.Adam(model.parameters())
x = torch.randn(8, 1024)
""",
        """
for step in range(10):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    torch.save([model.state_dict(), optimizer.state_dict()], folder / "last.pt")
""",
        (),
        ("file_io", "backward"),
    ),
    Everyday(
        "a dataset that reads a file per item",
        """
import json
import tempfile
from pathlib import Path
import torch
from torch.utils.data import DataLoader, Dataset
folder = Path(tempfile.mkdtemp())
for i in range(400):
    (folder / f"{i}.json").write_text(json.dumps({"x": list(range(500)), "y": i}))

class Files(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, i):
        item = json.loads((folder / f"{i}.json").read_text())
        return torch.tensor(item["x"], dtype=torch.float32), item["y"]
""",
        """
total = 0
for x, y in DataLoader(Files(), batch_size=20):
    total += (x.mean(1) * y).sum()
total
""",
        ("dataloader",),
        ("file_io", "python_time"),
    ),
    Everyday(
        "training with anomaly detection left on",
        """
import torch
from torch import nn
torch.manual_seed(0)
torch.autograd.set_detect_anomaly(True)
model = nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(8)])
x = torch.randn(32, 64)
""",
        """
for _ in range(10):
    model.zero_grad()
    model(x).square().mean().backward()
""",
        ("anomaly_detection",),
        ("backward",),
        "torch.autograd.set_detect_anomaly(False)",
    ),
    Everyday(
        "an autograd Function written in Python",
        """
import torch
torch.manual_seed(0)
class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return grad * (s + x * s * (1 - s))

w = torch.randn(16, 16, requires_grad=True)
x = torch.randn(8, 16)
""",
        """
for _ in range(30):
    y = x
    for _ in range(10):
        y = Swish.apply(y @ w)
    y.sum().backward()
""",
        (),
        ("python_autograd", "backward"),
    ),
    Everyday(
        "torch.compile with sequences of every length",
        """
import torch
torch.manual_seed(0)
@torch.compile(backend="eager", dynamic=False)
def score(x):
    return torch.tanh(x @ x.T).sum()
""",
        """
total = 0.0
for length in range(4, 10):
    total += float(score(torch.randn(length, 8)))
total
""",
        ("compilation",),
        ("one_off",),
    ),
    Everyday(
        "activation checkpointing",
        """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
torch.manual_seed(0)
blocks = nn.ModuleList(
    nn.Sequential(nn.Linear(256, 1024), nn.Tanh(), nn.Linear(1024, 256), nn.Tanh())
    for _ in range(4)
)
x = torch.randn(128, 256, requires_grad=True)
""",
        """
for _ in range(5):
    y = x
    for block in blocks:
        y = checkpoint(block, y, use_reentrant=False)
    y.mean().backward()
""",
        ("recomputation",),
        ("backward",),
    ),
    Everyday(
        "GELU written out",
        """
import math
import torch
from torch import nn
torch.manual_seed(0)
def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return self.down(gelu(self.up(x)))

model, x = nn.Sequential(*[MLP() for _ in range(8)]), torch.randn(4, 16)
""",
        """
with torch.no_grad():
    for _ in range(40):
        y = model(x)
""",
    ),
    Everyday(
        "a Trainer with one call in the cell",
        """
import torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
class Trainer:
    def __init__(self):
        self.model = nn.Sequential(nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 128))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.data = torch.randn(20, 256, 128)

    def step(self, x):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(x), x)
        loss.backward()
        self.optimizer.step()
        return loss

    def run(self):
        return [self.step(x) for x in self.data]
""",
        """
trainer = Trainer()
losses = trainer.run()
""",
        (),
        ("backward",),
    ),
    Everyday(
        "a loop over the rows of a tensor",
        "import torch\ntorch.manual_seed(0)\nvalues = torch.rand(2_000, 4)",
        """
total = 0
for i in range(len(values)):
    if values[i, 0] > 0.5:
        total += values[i].sum()
total
""",
        ("loop_indexing",),
    ),
    Everyday(
        "waiting for a service",
        """
import time
import torch
def ask(prompt):
    time.sleep(0.05)
    return torch.randn(8)
""",
        """
answers = torch.stack([ask(str(i)) for i in range(10)])
answers.norm(dim=1)
""",
        ("blocking_calls",),
    ),
    Everyday(
        "a logging thread that idles",
        """
import logging
import logging.handlers
import queue
import torch
lines = queue.Queue()
listener = logging.handlers.QueueListener(lines, logging.NullHandler())
listener.start()
log = logging.getLogger("everyday")
log.addHandler(logging.handlers.QueueHandler(lines))
log.propagate = False  # to the handlers of what runs the tests
x = torch.randn(800, 800)
""",
        """
for step in range(50):
    y = x @ x
    if step % 10 == 0:
        log.warning("step %d", step)
""",
        after="listener.stop()",
    ),
    Everyday(
        "one large product of matrices",
        "import torch\nx = torch.randn(1500, 1500)",
        """
y = x @ x
y.sum()
""",
    ),
    Everyday(
        "more threads than processors",
        """
import os
import torch
before = torch.get_num_threads()
torch.set_num_threads(8 * len(os.sched_getaffinity(0)))
x = torch.randn(512, 512)
""",
        """
for _ in range(20):
    x = torch.tanh(x @ x / 512)
""",
        ("cpu_threads",),
        after="torch.set_num_threads(before)",
    ),
    Everyday(
        "a DataLoader with workers",
        """
import torch
from torch.utils.data import DataLoader, Dataset
class Noise(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return torch.randn(3, 32, 32).sort().values
""",
        """
for batch in DataLoader(Noise(), batch_size=8, num_workers=2):
    mean = batch.mean()
""",
        ("dataloader",),
    ),
    Everyday(
        "decoding token by token",
        """
import torch
from torch import nn
torch.manual_seed(0)
embed, rnn, head = nn.Embedding(100, 32), nn.GRUCell(32, 64), nn.Linear(64, 100)
""",
        """
token, h, said = torch.tensor([1]), torch.zeros(1, 64), []
with torch.no_grad():
    for _ in range(150):
        h = rnn(embed(token), h)
        token = head(h).argmax(1)
        said.append(token.item())
""",
    ),
    Everyday(
        "a GAN with two optimizers",
        """
import torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
G = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 64))
D = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1))
opt_g, opt_d = (torch.optim.Adam(net.parameters(), 2e-4) for net in (G, D))
real = torch.randn(20, 64, 64)
""",
        """
for x in real:
    fake = G(torch.randn(64, 16))
    opt_d.zero_grad()
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
    loss_d = (F.binary_cross_entropy_with_logits(D(x), ones)
              + F.binary_cross_entropy_with_logits(D(fake.detach()), zeros))
    loss_d.backward()
    opt_d.step()
    opt_g.zero_grad()
    F.binary_cross_entropy_with_logits(D(fake), ones).backward()
    opt_g.step()
""",
        (),
        ("backward", "made_anew"),
    ),
    Everyday(
        "augmenting with PIL and plotting",
        """
import io
import matplotlib
matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image
pictures = [Image.fromarray(np.full((256, 256, 3), i, np.uint8)) for i in range(20)]
""",
        """
small = [np.asarray(p.rotate(10).resize((64, 64))) for p in pictures]
batch = torch.from_numpy(np.stack(small)).permute(0, 3, 1, 2).float() / 255
plt.hist(batch.flatten().numpy(), bins=50)
plt.close()
""",
        (),
        ("garbage_collection",),  # a figure's parts refer to each other
    ),
    Everyday(
        "gradient accumulation with a scheduler",
        """
import torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 10))
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
x, y = torch.randn(32, 64, 128), torch.randint(0, 10, (32, 64))
""",
        """
for step in range(32):
    loss = F.cross_entropy(model(x[step]), y[step]) / 4
    loss.backward()
    if step % 4 == 3:
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
""",
        (),
        ("backward", "loop_indexing"),
    ),
    Everyday(
        "a history of states that is cloned in every step",
        """
import torch
torch.manual_seed(0)
state = torch.randn(256, 256)
history = torch.zeros(40, 256, 256)
""",
        """
for step in range(40):
    state = torch.tanh(state * 1.01)
    history[step] = state.clone()
    before = history.clone()
    change = (before[step] - state).abs().max()
""",
        ("cpu_copies",),
    ),
    Everyday(
        "predictions collected by torch.cat",
        """
import torch
torch.manual_seed(0)
x = torch.randn(200, 512, 64)
w = torch.randn(64, 64)
""",
        """
out = torch.empty(0, 64)
for batch in x:
    out = torch.cat([out, batch @ w])
""",
        ("growing_cat",),
        ("loop_indexing",),
    ),
    Everyday(
        "heads that are split, transposed and joined again",
        """
import torch
torch.manual_seed(0)
q, k, v = (torch.randn(4, 8, 128, 64) for _ in range(3))
""",
        """
for _ in range(4):
    weights = torch.softmax(q @ k.transpose(-2, -1) / 8, -1)
    out = (weights @ v).transpose(1, 2).reshape(4, 128, 512)
    q = torch.cat([piece.tanh() for piece in out.split(64, -1)], -1).reshape(4, 8, 128, 64)
""",
        (),
        ("written_out_attention",),
    ),
    Everyday(
        "attention written out in training",
        """
import torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
project, join = nn.Linear(256, 768), nn.Linear(256, 256)
optimizer = torch.optim.SGD([*project.parameters(), *join.parameters()], lr=0.01)
causal = torch.ones(256, 256, dtype=torch.bool).tril()
x = torch.randn(4, 256, 256)
""",
        """
for step in range(4):
    q, k, v = project(x).view(4, 256, 3, 8, 32).permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(-2, -1) / 32 ** 0.5
    weights = F.dropout(F.softmax(scores.masked_fill(~causal, float("-inf")), dim=-1), 0.1)
    loss = join((weights @ v).transpose(1, 2).flatten(2)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        ("written_out_attention",),
        ("backward", "made_anew"),
    ),
]
