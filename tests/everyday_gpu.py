"""Cells that people run on a GPU, each with one known cause, and which findings are right.

`scripts/record_gpu_profiles.py` records them where there is a GPU; what it recorded is in
tests/data/gpu, so that what the findings say of a real GPU is tested everywhere.
"""

from __future__ import annotations

from tests.everyday import Everyday

CLASSIFIER = """
import torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(64, 128, 3, padding=1, bias=False), nn.BatchNorm2d(128), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10),
).to("cuda", memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
images = torch.randn(4, 256, 3, 160, 160).to("cuda")
labels = torch.randint(0, 10, (4, 256)).to("cuda")
def step(x, y):
    optimizer.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.cross_entropy(model(x.to(memory_format=torch.channels_last)), y)
    loss.backward()
    optimizer.step()
    return loss.detach()
for x, y in zip(images, labels):
    step(x, y)
"""

GPU_CELLS = [
    Everyday(
        "a training that keeps its GPU busy",
        CLASSIFIER,
        """
losses = [step(x, y) for x, y in zip(images, labels)]
print(torch.stack(losses).mean().item())
""",
        (),
        ("gpu_ops", "device_idle", "synchronising"),
    ),
    Everyday(
        "the loss read in every step",
        """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 10)).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
images = torch.randn(8, 16384, 1024).to("cuda")
labels = torch.randint(0, 10, (8, 16384)).to("cuda")
criterion = nn.CrossEntropyLoss()
criterion(model(images[0]), labels[0]).backward()
optimizer.step()
""",
        """
running = 0.0
for x, y in zip(images, labels):
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    running += loss.item()
print(running)
""",
        ("synchronising", "tensor_cores_idle"),
        ("gpu_ops", "device_idle"),
    ),
    Everyday(
        "a step of many small kernels",
        """
import torch
from torch import nn
torch.manual_seed(0)
layers = [layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU())]
model = nn.Sequential(*layers, nn.Linear(64, 1)).to("cuda")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)
x = torch.randn(32, 64).to("cuda")
model(x).mean().backward()
optimizer.step()
torch.cuda.synchronize()
""",
        """
for _ in range(2):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
loss.item()
""",
        ("device_idle", "short_kernels", "optimizer_loops"),
        (),
    ),
    Everyday(
        "batches copied from pageable memory",
        """
import torch
torch.manual_seed(0)
batches = [torch.randn(64, 3, 224, 224) for _ in range(8)]
kernel = torch.randn(64, 3, 7, 7).to("cuda")
torch.nn.functional.conv2d(batches[0].to("cuda"), kernel, stride=2)
torch.cuda.synchronize()
""",
        """
total = torch.zeros((), device="cuda")
for batch in batches:
    batch = batch.to("cuda")
    total += torch.nn.functional.conv2d(batch, kernel, stride=2).relu().mean()
print(total.item())
""",
        ("pageable_copies", "one_stream"),
        ("gpu_ops", "device_idle"),
    ),
    Everyday(
        "pinned batches copied beside the work",
        """
import torch
torch.manual_seed(0)
batches = [torch.randn(64, 3, 224, 224).pin_memory() for _ in range(8)]
kernel = torch.randn(64, 3, 7, 7).to("cuda")
copies = torch.cuda.Stream()
torch.nn.functional.conv2d(batches[0].to("cuda"), kernel, stride=2)
torch.cuda.synchronize()
""",
        """
total = torch.zeros((), device="cuda")
def fetch(batch):
    with torch.cuda.stream(copies):
        return batch.to("cuda", non_blocking=True)
ahead = fetch(batches[0])
for number in range(len(batches)):
    torch.cuda.current_stream().wait_stream(copies)
    here = ahead
    here.record_stream(torch.cuda.current_stream())
    if number + 1 < len(batches):
        ahead = fetch(batches[number + 1])
    for _ in range(4):
        total += torch.nn.functional.conv2d(here, kernel, stride=2).relu().mean()
print(total.item())
""",
        (),
        ("gpu_ops", "device_idle", "synchronising"),
    ),
    Everyday(
        "matrix products in 32 bits",
        """
import torch
torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = False
x, weights = torch.randn(4096, 4096).to("cuda"), torch.randn(8, 4096, 4096).to("cuda")
(x @ weights[0]).sum().item()
""",
        """
y = x
for weight in weights:
    y = torch.tanh(y @ weight / 64)
y.mean().item()
""",
        ("tensor_cores_idle",),
        ("gpu_ops", "device_idle", "synchronising"),
    ),
    Everyday(
        "a boolean mask in every step",
        """
import torch
torch.manual_seed(0)
scores = torch.rand(24, 2048, 2048).to("cuda")
weights = torch.randn(2048, 2048).to("cuda")
(scores[0] @ weights)[scores[0] > 0.9].sum().item()
""",
        """
kept = []
for score in scores:
    mixed = score @ weights
    kept.append(mixed[score > 0.9].mean())
torch.stack(kept).sum().item()
""",
        ("synchronising", "tensor_cores_idle"),
        ("gpu_ops", "device_idle", "short_kernels"),
    ),
    Everyday(
        "a dataset that prepares its items in Python",
        """
import math
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)
class Waves(Dataset):
    def __len__(self):
        return 256
    def __getitem__(self, index):
        wave = [math.sin(index * 0.01 * k) for k in range(2048)]
        return torch.tensor(wave), index % 10
loader = DataLoader(Waves(), batch_size=32)
model = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
criterion = nn.CrossEntropyLoss()
criterion(model(torch.randn(32, 2048).to("cuda")), torch.zeros(32, dtype=int).to("cuda")).backward()
""",
        """
for waves, labels in loader:
    waves, labels = waves.to("cuda"), labels.to("cuda")
    optimizer.zero_grad()
    criterion(model(waves), labels).backward()
    optimizer.step()
""",
        ("dataloader",),
        ("device_idle", "short_kernels"),
    ),
    Everyday(
        "attention written out",
        """
import torch
torch.manual_seed(0)
query, key, value = torch.randn(3, 8, 16, 2048, 64, dtype=torch.bfloat16).to("cuda")
torch.softmax(query[:1] @ key[:1].transpose(-2, -1), dim=-1).sum().item()
""",
        """
for _ in range(3):
    scores = query @ key.transpose(-2, -1) / 8
    causal = torch.ones(2048, 2048, dtype=torch.bool, device="cuda").tril()
    scores = scores.masked_fill(~causal, float("-inf"))
    mixed = torch.softmax(scores, dim=-1) @ value
mixed.mean().item()
""",
        ("written_out_attention",),
        ("gpu_ops", "device_idle", "synchronising", "memory"),
    ),
    Everyday(
        "generation that copies its tokens to Python",
        """
import torch
from torch import nn
torch.manual_seed(0)
embed, head = nn.Embedding(1000, 256).to("cuda"), nn.Linear(256, 1000).to("cuda")
block = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True).to("cuda").eval()
with torch.inference_mode():
    head(block(embed(torch.zeros(1, 4, dtype=int).to("cuda")))).argmax().item()
""",
        """
tokens = [1, 2, 3]
with torch.inference_mode():
    while len(tokens) < 24:
        x = torch.tensor([tokens], device="cuda")
        logits = head(block(embed(x)))[0, -1]
        tokens.append(int(logits.argmax()))
len(tokens)
""",
        ("device_idle", "short_kernels"),
        (),
    ),
    Everyday(
        "the allocator emptied in every step",
        CLASSIFIER,
        """
for x, y in zip(images, labels):
    step(x, y)
    torch.cuda.empty_cache()
torch.cuda.synchronize()
""",
        ("memory", "synchronising"),
        ("device_idle", "short_kernels"),
    ),
    Everyday(
        "torch.compile with CUDA graphs",
        """
import torch
from torch import nn
torch.manual_seed(0)
layers = [layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.GELU())]
model = torch.compile(nn.Sequential(*layers).to("cuda"), mode="reduce-overhead")
x = torch.randn(64, 256).to("cuda")
with torch.inference_mode():
    for _ in range(4):
        model(x)
torch.cuda.synchronize()
""",
        """
with torch.inference_mode():
    for _ in range(20):
        torch.compiler.cudagraph_mark_step_begin()
        y = model(x)
y.mean().item()
""",
        ("device_idle",),
        ("short_kernels", "gpu_ops"),
    ),
    Everyday(
        "two streams side by side",
        """
import torch
streams = [torch.cuda.Stream() for _ in range(2)]
torch.cuda.synchronize()
""",
        """
for stream in streams:
    with torch.cuda.stream(stream):
        for _ in range(10):
            torch.cuda._sleep(2_000_000)
torch.cuda.synchronize()
""",
        (),
        ("device_idle", "synchronising"),
    ),
    Everyday(
        "two streams that take turns",
        """
import torch
streams = [torch.cuda.Stream() for _ in range(2)]
torch.cuda.synchronize()
""",
        """
for _ in range(10):
    for stream in streams:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(2_000_000)
        torch.cuda.synchronize()
""",
        ("synchronising",),
        ("device_idle",),
    ),
]
"""``says`` and ``may`` as judged on what was recorded."""

GPU_OPTIONS = {
    "a training that keeps its GPU busy": "--shapes",
    "a step of many small kernels": "--stack",
    "attention written out": "--shapes --memory",
    "the allocator emptied in every step": "--memory",
    "two streams side by side": "--sync",
    "two streams that take turns": "--sync",
    "pinned batches copied beside the work": "--sync",
}
"""What some of them are recorded with beside what `%%gpuprofile` records anyway."""
