# %% [markdown]
r"""
# Scaling up

What a model costs in numbers, operations and bytes, what a machine can give, and how to plan a run that is too large to try.

The models of this book train in minutes. A larger one takes hours, and a very large one takes months and a building full of machines. Nobody
starts such a run to see what happens. One counts first. This page counts parameters, operations and bytes, measures what this machine can do
with them, shares the work among processes, and plans a run that the build does not make. At the end you can do the same for a model of your own.

## One layer, counted

A linear layer takes 3 numbers and gives 2. Four rows come, one for each of four tokens. How much work is that, with training? Forward, the
rows are multiplied by the matrix. On the way back, a gradient arrives for each output. From it come two more products: the gradient of the weights, and the
gradient of the inputs, which the layer below needs. Count each multiplication and each addition.
"""

# %%
import torch


def product(a, b):
    """a @ b by loops, and how many multiplications and additions it took."""
    (rows, inner), columns = a.shape, b.shape[1]
    out, count = torch.zeros(rows, columns), 0
    for i in range(rows):
        for j in range(columns):
            for n in range(inner):
                out[i, j] += a[i, n] * b[n, j]
                count += 2
    return out, count


torch.manual_seed(1)
x = torch.randn(4, 3, requires_grad=True)
w = torch.randn(3, 2, requires_grad=True)
arriving = torch.randn(4, 2)  # the gradient of the loss by the layer's outputs

with torch.no_grad():
    y, forward = product(x, w)
    of_weights, by_weights = product(x.T, arriving)
    of_inputs, by_inputs = product(arriving, w.T)

(x @ w).backward(arriving)
torch.testing.assert_close(y, (x @ w).detach())
torch.testing.assert_close(of_weights, w.grad)
torch.testing.assert_close(of_inputs, x.grad)
assert forward == by_weights == by_inputs == 2 * w.numel() * len(x)
print("operations for each weight and token:", (3 * forward) // (w.numel() * len(x)))

# %% [markdown]
r"""
Three products of the same size, and two operations for each weight and token in each of them. That is the rule of **6 N**: training on
a token costs six operations for each of $N$ weights.

## A GPT, counted

Now all of our GPT. The matrices of a block hold $12 C^2$ numbers: $4 C^2$ in attention and $8 C^2$ in the MLP. Its biases and norms hold
$10 C$. Around the blocks stand the two tables, the last norm and the unembedding.

Not every parameter is a weight of a product. Looking up a row of a table multiplies nothing. And there are products without parameters:
attention multiplies queries by keys, and weights by values. Each of the two costs $2 T C$ operations forward for a token that
looks at $T$, in each block. Hidden scores are computed too, and then thrown away.
"""

# %%
from gptbook import kv_cache, recipes, verify
from gptbook.claims import claim
from gptbook.model import GPT
from gptbook.recipes import PRESETS, TRAINING


def parameters(c):
    L, C, T, V = c.n_layer, c.n_embd, c.block_size, c.vocab_size
    return V * C + T * C + L * (12 * C**2 + 10 * C) + 2 * C + V * C


def operations(c):
    """Multiplications and additions that training spends on a token."""
    L, C, T, V = c.n_layer, c.n_embd, c.block_size, c.vocab_size
    return 6 * (12 * L * C**2 + V * C) + 3 * L * 2 * (2 * T * C)


ours, larger = PRESETS["step-5"], PRESETS["larger"]
for c in (ours, larger):
    assert parameters(c) == verify.expected_parameters(c)
    assert operations(c) == recipes.flops_per_token(c)
    assert operations(c) * c.block_size == 6 * kv_cache.multiply_adds(c, c.block_size)

torch.manual_seed(0)
model = GPT(ours)
assert parameters(ours) == sum(p.numel() for p in model.parameters())
claim("scale_parameters", parameters(ours), expected=816_640)
claim("scale_operations", operations(ours), expected=5_161_728)
print(f"{parameters(ours):,} parameters, {operations(ours):,} operations a token")

# %% [markdown]
r"""
Three functions of the package agree with the two formulas. Does PyTorch? It can count the products that it runs, forwards and backwards.
"""

# %%
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

B, T = 12, ours.block_size
idx = torch.randint(ours.vocab_size, (B, T))  # (B, T)
targets = torch.randint(ours.vocab_size, (B, T))  # (B, T)

with FlopCounterMode(display=False) as counter:
    loss = F.cross_entropy(model(idx).flatten(0, 1), targets.flatten())
    loss.backward()
assert counter.get_total_flops() == operations(ours) * B * T
print(f"{counter.get_total_flops():,} operations for a batch of {B} rows")

# %% [markdown]
r"""
To the last operation. Everything else, softmax, norms, additions, is left out of the count. It is little work, though it can take long, as we will see.

So how good is the rule of 6 N? Hold it against the count, with all parameters as $N$.
"""

# %% tags=["hide-input"]
from dataclasses import replace

from gptbook import display

gpt2 = PRESETS["gpt2"]
shapes = {
    "lets-build-bpe": PRESETS["lets-build-bpe"],
    "step-5": ours,
    "larger": larger,
    "gpt2": gpt2,
    "gpt2, eight windows in one": replace(gpt2, block_size=8 * gpt2.block_size),
}
rows, ratios = [], {}
for name, c in shapes.items():
    n, counted = verify.expected_parameters(c), recipes.flops_per_token(c)
    attention = 12 * c.n_layer * c.block_size * c.n_embd
    ratios[name] = counted / (6 * n)
    ratio = f"{ratios[name]:.2f}"
    rows.append(
        (
            name,
            f"{n:,}",
            f"{6 * n:,}",
            f"{counted:,}",
            ratio,
            f"{attention / counted:.0%}",
        )
    )
claim("scale_ratio_pieces", ratios["lets-build-bpe"], (0.7, 0.9), kind="tolerance")
assert all(1 < ratios[name] < 7 / 6 for name in ("step-5", "larger", "gpt2"))
claim(
    "scale_ratio_long",
    ratios["gpt2, eight windows in one"],
    (2.0, 2.3),
    kind="tolerance",
)
display.table(
    rows,
    header=("model", "N", "6 N", "counted", "counted / 6 N", "of it attention"),
    caption="Operations of training for each token. The last column is the part of scores and weighted sums.",
)

# %% [markdown]
r"""
For the three in the middle it is off by less than a sixth. It fails in two ways. With many symbols and a narrow stream, much of $N$ is a table, and
the rule counts too much: the true number is {{ scale_ratio_pieces:.2f}} of it. With a long window, attention's own products take over, and the rule
counts too little, by a factor of {{ scale_ratio_long:.1f}} in the last row. Against the matrices of the blocks, attention costs
$\frac{12 L T C}{72 L C^2} = \frac{T}{6 C}$. So the rule needs a window that is well below six times the width.

## Bytes

A parameter is a number of four bytes in float32. Training keeps more than the parameters: a gradient for each of them, and for each the two
averages of [AdamW](09_training.py), of the gradient and of its square. That makes sixteen bytes. Make one step, and look.
"""

# %%
from gptbook import trainer

optimizer = trainer.make_optimizer(model, TRAINING["step-5"])
trainer.update(model, optimizer, idx, targets, learning_rate=1e-3)


def size(tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


held = list(model.parameters())
N = parameters(ours)
kept_for_good = {
    "weights": size(held),
    "gradients": size(p.grad for p in held),
    "average of gradients": size(optimizer.state[p]["exp_avg"] for p in held),
    "average of squares": size(optimizer.state[p]["exp_avg_sq"] for p in held),
}
assert set(kept_for_good.values()) == {4 * N}
print(f"16 N = {sum(kept_for_good.values()):,} bytes")

# %% [markdown]
r"""
The rest is **activations**: what the way forward computes and the way back needs again. Autograd keeps a tensor if a derivative asks for it. A
product needs both of its factors, GELU its input, softmax its output. Go through a block, and write down what each operation keeps for a token:

| kept | numbers |
|:--|:--|
| input and output of both norms, and the mean and the size that they used | $4 C + 4$ |
| queries, keys, values | $3 C$ |
| weights of attention, in each head a row | $H T$ |
| what attention gives to its projection | $C$ |
| the MLP before and after GELU | $8 C$ |

Around the blocks, the last norm keeps $2 C + 2$ numbers a token, and the loss $V$, and one more for all tokens together. A few whole numbers come on top: the tokens, the targets and the positions, each of eight bytes,
and a mask of one byte for each pair of positions in each block.

PyTorch lets us watch. A hook is called with each tensor that autograd keeps. Views of one memory count once, and the weights do not count again.
"""


# %%
def kept(model, idx, targets):
    """The bytes that autograd keeps between the way forward and the way back."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    seen = {}

    def keep(t):
        memory = t.untyped_storage()
        if memory.data_ptr() not in weights:
            seen[memory.data_ptr()] = memory  # kept here too, so no address comes twice
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        F.cross_entropy(model(idx).flatten(0, 1), targets.flatten())
    return sum(memory.nbytes() for memory in seen.values())


def activations(c, B):
    L, H, C, T, V = c.n_layer, c.n_head, c.n_embd, c.block_size, c.vocab_size
    numbers = L * (16 * C + H * T + 4) + 2 * C + 2 + V  # for each token
    return 4 * (B * T * numbers + 1) + 8 * (2 * B * T + T) + L * T**2


for B in (1, 12):
    measured = kept(model, idx[:B].clone(), targets[:B].clone())
    assert measured == activations(ours, B)
    print(f"batch of {B:2}: {measured:,} bytes")

# %% [markdown]
r"""
The formula gives every byte. Now the same for the larger recipe of this page's end, which nobody has to build for that.
"""

# %% tags=["hide-input"]
rows = []
for name, B in (("step-5", TRAINING["step-5"].batch_size), ("larger", 64)):
    c = PRESETS[name]
    n, a = parameters(c), activations(c, B)
    tokens = f"{B * c.block_size:,}"
    rows.append((name, tokens, *(f"{v / 1e6:,.1f}" for v in (4 * n, 4 * n, 8 * n, a))))
    claim(f"scale_{name.replace('-', '_')}_activations", a / 1e6)
    claim(f"scale_{name.replace('-', '_')}_sixteen", 16 * n / 1e6)
display.table(
    rows,
    header=(
        "model",
        "tokens a step",
        "weights",
        "gradients",
        "two averages",
        "activations",
    ),
    caption="Millions of bytes in training, float32. Masks of dropout, which the larger recipe has, come on top.",
)

# %% [markdown]
r"""
For our model the activations are {{ scale_step_5_activations:.0f}} million bytes, against {{ scale_step_5_sixteen:.0f}} million for everything else. For the larger one they are {{ scale_larger_activations:,.0f}} million against
{{ scale_larger_sixteen:.0f}} million. It is the batch, not the model, that fills the memory, and a half of the batch needs a half of it.

## The roof

How fast can a machine be? There are two limits. The processor makes so many operations a second, its **peak**. And the memory moves
so many bytes a second, its **bandwidth**. A product of matrices $(n, k)$ and $(k, m)$ makes $2 n k m$ operations. Its matrices have to be moved at least once: $4 (n k + k m + n m)$ bytes. The ratio of the two is the
product's **intensity**, in operations for each byte.

Say the bandwidth is $10$ bytes a second, the peak is $100$ operations, and the intensity is $2$. Then bytes for $20$ operations come each second, and the processor waits
most of the time. At an intensity of $30$ it is the memory that waits. So the rate is at most

$$\min(\text{peak},\ \text{bandwidth} \cdot \text{intensity}).$$

Drawn over the intensity this is a slope and then a flat line. It is called a **roofline**. Here is the one of the machine that built this page, for one thread.
"""

# %%
import statistics
import time


def seconds(work, bursts=9, least=0.005):
    """Seconds of one call of `work`: the best of a few bursts."""
    work()
    start = time.perf_counter()
    work()
    repeats = max(1, int(least / (time.perf_counter() - start + 1e-9)))
    took = []
    for _ in range(bursts):
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        took.append((time.perf_counter() - start) / repeats)
    return min(took)


def intensity(n, k, m):
    return 2 * n * k * m / (4 * (n * k + k * m + n * m))


def rate(n, k, m):
    a, b = torch.randn(n, k), torch.randn(k, m)
    return 2 * n * k * m / seconds(lambda: a @ b)


C, V = ours.n_embd, ours.vocab_size
tokens = 12 * ours.block_size
products = {
    "queries, keys, values": (tokens, C, 3 * C),
    "MLP, up": (tokens, C, 4 * C),
    "MLP, down": (tokens, 4 * C, C),
    "unembedding": (tokens, C, V),
    "one token, MLP up": (1, C, 4 * C),
    "one token, width 4096": (1, 4096, 4096),
    "larger recipe, MLP up": (2048, larger.n_embd, 4 * larger.n_embd),
    "square of 1024": (1024, 1024, 1024),
}


def copying(n):
    """Bytes a second, read and written, of copying n numbers."""
    before, after = torch.ones(n), torch.empty(n)
    return 2 * size([before]) / seconds(lambda: after.copy_(before))


bandwidth = copying(2**24)
rates = {name: rate(*shape) for name, shape in products.items()}
peak = max(rates.values())
claim("scale_peak", peak / 1e9, kind="statistical")
claim("scale_bandwidth", bandwidth / 1e9, kind="statistical")
claim("scale_ridge", peak / bandwidth, kind="statistical")
one, many = (intensity(*products[n]) for n in ("one token, MLP up", "MLP, up"))
claim("scale_intensity_one", one, (0.49, 0.5), kind="tolerance")
claim("scale_intensity_many", many, (45.0, 46.0), kind="tolerance")
print(f"copying: {bandwidth / 1e9:.1f} billion bytes a second")
print(f"best product: {peak / 1e9:.1f} GFLOP/s")

# %% tags=["hide-input"] alt="A roofline in double logarithmic axes: the rate of matrix products over their operations for each byte. A slope rises from the left and ends in a flat line. Two products of one token stand at the far left, low on the slope or a little above it. The products of our model and of the larger recipe stand on the right, under the flat line." caption="Products of matrices under the roof of this machine, one thread. Left of the corner the memory is the limit, right of it the processor. The numbers are those of the table below."
fig, ax = display.figure(5.4, 3.4)
xs = [0.2, peak / bandwidth, 600.0]
ax.plot(xs, [min(peak, bandwidth * v) / 1e9 for v in xs], color=display.GREY)
colours = {"one": display.ORANGE, "larger": display.GREEN, "square": display.GREY}
places = {1: (-9, -3), 2: (0, -15), 3: (9, -3)}  # of labels; else above
for i, (name, shape) in enumerate(products.items(), start=1):
    colour = colours.get(name.split()[0].strip(","), display.BLUE)
    at = (intensity(*shape), rates[name] / 1e9)
    ax.plot(*at, "o", color=colour)
    ax.annotate(
        str(i),
        at,
        xytext=places.get(i, (0, 7)),
        textcoords="offset points",
        ha="center",
        fontsize=8,
    )
ax.set_xscale("log")
ax.set_yscale("log")
low, high = ax.get_ylim()
ticks = [t for t in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500) if low < t < high]
ax.set_yticks(ticks, [f"{t:g}" for t in ticks])
ax.set_xticks([1, 10, 100], ["1", "10", "100"])
ax.minorticks_off()
ax.set_xlabel("operations for each byte")
ax.set_ylabel("GFLOP/s")

# %% tags=["hide-input"]
from gptbook import machine

display.table(
    [
        (
            i,
            name,
            f"{intensity(*products[name]):.1f}",
            f"{min(peak, bandwidth * intensity(*products[name])) / 1e9:.1f}",
            f"{rates[name] / 1e9:.1f}",
        )
        for i, name in enumerate(products, start=1)
    ],
    header=("", "product", "operations for each byte", "roof", "measured"),
    caption=f"GFLOP/s, float32, one thread of: {machine.processor()}. Other work on the machine at the time lowers them.",
)

# %% [markdown]
r"""
A GFLOP/s is a billion operations a second. The best product here reached {{ scale_peak:.0f}} of them, and copying moved {{ scale_bandwidth:.1f}} billion bytes a second. The corner of the roof is at an intensity of
{{ scale_ridge:.0f}}.

In training, all tokens of a batch share each weight. Our model's products have an intensity of about {{ scale_intensity_many:.0f}}: the memory can wait. When one token is
written with a [cache](11_cache.py), every weight is fetched for a single multiplication and a single addition. In float32 that is an intensity of {{ scale_intensity_one:.1f}}, wherever the model runs, and no faster processor helps. Fewer bytes do, and so do more
rows at once.

A point above the slope is no mistake of measurement. The slope is that of the main memory. The matrices of our small model fit into the processor's own cache, and come from there
much faster. The matrix of width `4096` has $4 \cdot 4096^2$ bytes, more than most caches hold.

The operations that we did not count are on this slope too. Adding two numbers reads eight bytes, writes four, and makes one operation. So a norm or a GELU takes about as long as moving its tensor
to the processor and back, several times over.

## Fewer bits

If bytes are the limit, use smaller numbers. A float32 has one bit for the sign, eight for the exponent, and twenty-three for the digits behind the point. A **bfloat16** keeps
the sign and the exponent, and only seven of the digits. So it reaches as far, from tiny to huge, and is coarse on the way: between 1 and 2 it has steps of
$2^{-7}$. With the leading one, which is not stored, it has eight binary digits.

A float32 becomes a bfloat16 by dropping its lower sixteen bits. (In the code, `>> 16` moves all bits sixteen places down, `& 1` keeps the last one, `0x7FFF` is $2^{15} - 1$, and `& ~0xFFFF` sets the lower sixteen to 0.) To *round*, first add a half of the last bit that stays, or a hair less than a half where that bit is 0. So a number in the middle goes
to the neighbour whose last bit is 0.
"""


# %%
def to_bfloat16(x):
    """x (N,) in float32, each number rounded to one that bfloat16 has."""
    bits = x.view(torch.int32)  # (N,): the same bits, read as whole numbers
    last = (bits >> 16) & 1  # (N,): the last bit that stays
    bits = (bits + 0x7FFF + last) & ~0xFFFF  # (N,)
    return bits.view(torch.float32)


torch.manual_seed(2)
numbers = torch.cat(
    (torch.randn(100_000) * 10 ** torch.randn(100_000), torch.arange(-300.0, 300.0))
)
assert torch.equal(to_bfloat16(numbers), numbers.bfloat16().float())
claim("bf16_compared", len(numbers))
for value in (1.0, 1.003, 1.004, 3.14159, 257.0, 1e30):
    print(f"{value:<8g} -> {to_bfloat16(torch.tensor([value])).item():.8g}")

# %% [markdown]
r"""
The same as PyTorch's own, for {{ bf16_compared:,}} numbers. Now see what breaks.
"""

# %%
counting = torch.tensor(0.0).bfloat16()
for _ in range(1000):
    counting += 1
claim("bf16_count", counting.item(), expected=256.0)
print("a thousand ones, added one by one:", counting.item())

half, full = torch.tensor(1.0).bfloat16(), torch.tensor(1.0)
for _ in range(1000):
    half -= 1e-3
    full -= 1e-3
claim("bf16_weight", half.item(), expected=1.0)
print(
    f"a weight after a thousand small updates: {half.item()}, in float32 {full.item():.4f}"
)
assert abs(full.item()) < 1e-3

# %% [markdown]
r"""
At {{ bf16_count:.0f}} the next number of bfloat16 is two further. One more lies in the middle, and is rounded back. And a weight of {{ bf16_weight:.0f}} does not feel an update of a thousandth, however often
it comes. Updates *are* often that small beside their weight: one is lost where it is below half a step, about a four-hundredth of the weight. So two things must stay in float32: sums of many numbers, and the weights that the optimizer changes, the **master weights**.
A product may take its factors in bfloat16, as long as it adds up in float32 inside.

That is what the package does, in a few lines, by a part of PyTorch named autocast.
"""

# %%
from gptbook import engine

display.source(engine.lowered)

# %%
small = GPT(replace(ours, n_layer=1, n_embd=32, block_size=16))
x = torch.randint(ours.vocab_size, (2, 16))  # (B, T)
exact = small(x).detach()
types = {}


def note(name):
    return lambda module, given, out: types.update({name: str(out.dtype)})


small.wte.register_forward_hook(note("embedding"))
small.h[0].ln_1.register_forward_hook(note("norm"))
small.h[0].attn.c_attn.register_forward_hook(note("linear layer"))
small.h[0].attn.attn_dropout.register_forward_hook(note("weights of attention"))
small.lm_head.register_forward_hook(note("logits"))
with engine.lowered(torch.bfloat16):
    low = small(x)
F.cross_entropy(low.float().flatten(0, 1), x.flatten()).backward()
types["gradient of a weight"] = str(small.h[0].attn.c_attn.weight.grad.dtype)
types["the weight itself"] = str(small.h[0].attn.c_attn.weight.dtype)
assert types["linear layer"] == types["logits"] == "torch.bfloat16"
assert types["weights of attention"] == "torch.bfloat16"
assert (
    types["embedding"]
    == types["norm"]
    == types["gradient of a weight"]
    == "torch.float32"
)
off = (low.detach().float() - exact).abs().max() / exact.std()
claim("bf16_logits_off", off, (0.0, 0.1), kind="tolerance")
for name, kind in types.items():
    print(f"{name:22}{kind}")

# %% [markdown]
r"""
The products came out in bfloat16, and so did what reads them directly, as the weights of attention do. The stream, its norms, the gradients and the weights of the model stayed. The logits moved by at most {{ bf16_logits_off:.1%}} of their spread.

Is it faster? Only on a processor with instructions for it. Others have to imitate them, and are slower than with float32. The setting `precision="auto"` of the trainer asks the
processor, and so do we.
"""

# %%
a, b = torch.randn(64, 64), torch.randn(64, 64)
a16, b16 = a.bfloat16(), b.bfloat16()
took = {
    "float32": seconds(lambda: a @ b),
    "bfloat16": seconds(lambda: a16 @ b16),
}
has = machine.multiplies_bfloat16()
print("instructions for bfloat16 here:", "yes" if has else "no")
print('precision="auto" is', engine.dtype_of("auto"))
for name, each in took.items():
    print(f"{name:10}{2 * 64**3 / each / 1e9:8.2f} GFLOP/s on a product of 64 by 64")

# %% [markdown]
r"""
## Compiled

PyTorch runs a model one operation at a time. Each reads its tensors from memory, and writes its result back. Squared ReLU on $n$ numbers is a ReLU and a square: $n$ numbers read, $n$ written, read
again, written again. In *one* loop that does both to a number while it is at hand, it is $n$ read and $n$ written, a half of the bytes. This is called **fusing**. `torch.compile` looks at the operations of a model, and writes and compiles such loops. Products of matrices
stay what they are.
"""

# %%
display.source(engine.make)

# %% [markdown]
r"""
So compiling helps what stands *between* the products, and the modern block of [page 17](17_today.py) has a lot of that: norms, turns by position, squares. How many operations are there in one step of a small
one? Forward there are seven products: four in attention, two in the MLP, and the unembedding. And what does it bring here, with one thread? Where there is no compiler, the plain code serves, and the line below says so.
"""

# %%
from torch.utils._python_dispatch import TorchDispatchMode


class Counting(TorchDispatchMode):
    """Counts the operations that PyTorch is asked for, and how many of them are products."""

    def __init__(self):
        super().__init__()
        self.all = self.products = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        tensors = [
            t
            for t in (out if isinstance(out, tuple | list) else [out])
            if torch.is_tensor(t)
        ]
        if any(t.is_floating_point() for t in tensors) and not function.is_view:
            self.all += 1
            self.products += function.overloadpacket.__name__ in ("mm", "addmm", "bmm")
        return out


modern = recipes.build(
    replace(PRESETS["shakespeare"], n_layer=1, block_size=64, ngrams=1)
)
x = torch.randint(65, (16, 64))  # (B, T)
with Counting() as count:
    trainer.loss_fn(modern(x), x).backward()
claim("scale_fused_products", count.products, expected=3 * 7)
claim("scale_fused_rest", count.all - count.products)
print(f"{count.all} operations, {count.products} of them products")

# %%
plain = engine.make(modern, trainer.loss_fn)
fast = engine.make(modern, trainer.loss_fn, compile=True, example=(x, x))
assert torch.allclose(plain.loss(x, x), fast.loss(x, x), atol=1e-4)


def both_ways(used):
    used.loss(x, x).backward()
    modern.zero_grad()


times = {"plain": [], "compiled": []}
for _ in range(5):  # in turns, so that other work on the machine meets both
    for name, used in (("plain", plain), ("compiled", fast)):
        times[name].append(seconds(lambda used=used: both_ways(used), bursts=1))
print(fast.words or "not compiled")
for name, each in times.items():
    print(f"{name:9}{1e3 * statistics.median(each):7.2f} ms forwards and backwards")

# %% [markdown]
r"""
There are {{ scale_fused_products}} products, and {{ scale_fused_rest}} operations around them. Compiling takes its time first, or a little of it where an earlier build left its loops in a cache. It pays for a run of minutes, not for one of
seconds. It also computes sums in another order, so its losses are equal to the plain ones up to rounding, and no further.

## Several processes

Two processes, two halves of a batch. Each has a copy of the model, and each computes the gradient of the mean loss over its own rows. Take eight rows and a linear model, by hand.
"""

# %%
torch.manual_seed(3)
rows, wanted = torch.randn(8, 3), torch.randn(8)
w = torch.randn(3)


def gradient(rows, wanted):
    """Of the mean over the rows of (row . w - wanted)^2, by w."""
    return 2 * rows.T @ (rows @ w - wanted) / len(rows)


whole = gradient(rows, wanted)
halves = [gradient(rows[:4], wanted[:4]), gradient(rows[4:], wanted[4:])]
unequal = [gradient(rows[:6], wanted[:6]), gradient(rows[6:], wanted[6:])]
torch.testing.assert_close(sum(halves) / 2, whole)
assert not torch.allclose(sum(unequal) / 2, whole, atol=0.01)
torch.testing.assert_close((6 * unequal[0] + 2 * unequal[1]) / 8, whole)
print("whole batch            ", whole)
print("mean of two halves     ", sum(halves) / 2)
print("mean of 6 rows and of 2", sum(unequal) / 2)

# %% [markdown]
r"""
The mean of the two halves' gradients is that of the whole batch. With six rows and two it is not: then two rows weigh as much as six.

!!! theorem "The gradient of the whole"

    Let a loss be the mean over $N$ rows of a loss $\ell_i$ of each. Cut the rows into shares of $n_1, \dots, n_P$ rows, and let $g_p$ be the gradient of the mean loss over share $p$. Then the
    gradient of the whole is $\sum_p \frac{n_p}{N} g_p$. For equal shares that is the mean of the $g_p$. For unequal ones, the mean is wrong for some losses.

    Tested by `test_gradient_of_the_whole`.

??? proof "Proof"

    The gradient of a sum is the sum of the gradients. The mean loss over share $p$ is $\frac{1}{n_p} \sum_{i \in p} \ell_i$, so $n_p g_p = \sum_{i \in p} \nabla \ell_i$. Add these up over all shares, and divide by $N$:
    $\sum_p \frac{n_p}{N} g_p = \frac{1}{N} \sum_i \nabla \ell_i$, the gradient of the whole. With $n_p = N / P$ all factors are $\frac{1}{P}$.

    Now let one share have $n_p \neq N / P$ rows. Take losses with $\nabla \ell_i = v \neq 0$ on this share, and 0 elsewhere. The gradient of the whole is $\frac{n_p}{N} v$, and the mean is
    $\frac{1}{P} v$. $\blacksquare$

The theorem asks that a row's loss depends on no other row. Ours does not: no layer of a GPT mixes rows. (Batch normalisation, which some other networks use, does.) Clipping comes *after* averaging, since the norm of the whole gradient is what it
is about.

In the package, each process draws the same batch from the same generator and takes its rows. Then it averages gradients with the others. All of them travel as one long row, because many small messages would take longer.
"""

# %%
from gptbook import parallel

display.source(parallel.share)

# %%
display.source(parallel.average_gradients)

# %% [markdown]
r"""
AdamW then makes the same update everywhere, and the copies stay equal. Only the first process measures, prints and writes. Dropout is the exception: each
process draws masks of its own, so with it a run of two is as good as a run of one, and not the same.

Here is a program that trains our model for fifty steps, and says what the loss was at each.
"""

# %%
program = """
import json, sys
import torch
from gptbook import checkpoint, parallel, trainer
from gptbook.model import GPT, GPTConfig


def peak():
    "The most memory that this process held, in bytes."
    if sys.platform == "linux":
        with open("/proc/self/status") as file:
            for line in file:
                if line.startswith("VmHWM"):  # some sandboxes leave it out
                    return 1024 * int(line.split()[1])
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most  # macOS counts bytes

before = peak()
tokens = torch.load(sys.argv[1])
config = trainer.TrainConfig(batch_size=12, steps=50, learning_rate=1e-3, clip=1.0)
trainer.LOOK_EVERY, losses = 1, []  # every loss, and not every tenth

with parallel.joined():  # does nothing where torchrun did not start us
    torch.manual_seed(config.seed + parallel.rank())  # other weights for each: the first's will hold
    model = GPT(GPTConfig())
    found = trainer.train(
        model, tokens[1000:], tokens[:1000], config,
        progress=lambda row: losses.append(row["batch_loss"]) if "val_loss" not in row else None,
    )
    about = {
        "losses": losses,
        "weights": checkpoint.digest(checkpoint.weights(model)),
        "tokens_per_second": found.tokens_per_second,
        "peak": peak(),
        "before": before,
    }
    with open(f"{sys.argv[2]}-{parallel.rank()}.json", "w") as file:
        json.dump(about, file)
"""

# %% [markdown]
r"""
Start it once as it is, and once as two processes. On a command line, the second would be `torchrun --nproc-per-node 2 program.py`.
"""

# %%
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import gptbook
from gptbook import corpora, data
from gptbook.tokenizers import CharTokenizer

corpus = corpora.load("tinyshakespeare")
tokenizer = CharTokenizer.train(corpus.text, vocab_size=65)
train, _ = data.split(torch.tensor(tokenizer.encode(corpus.text)))  # (N,)

here = Path(gptbook.__file__).parents[1]
paths = os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])
environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

with tempfile.TemporaryDirectory() as folder:
    folder = Path(folder)
    (folder / "program.py").write_text(program)
    torch.save(train[:100_000], folder / "tokens")
    for name, launcher in (("one", []), ("two", torchrun)):
        command = [sys.executable, *launcher, "program.py", "tokens", name]
        done = subprocess.run(
            command, cwd=folder, env=environment, stderr=subprocess.PIPE
        )
        assert done.returncode == 0, done.stderr.decode()[-2000:]
    alone, first, second = (
        json.loads((folder / f"{name}.json").read_text())
        for name in ("one-0", "two-0", "two-1")
    )

apart = max(abs(a - b) for a, b in zip(alone["losses"], first["losses"], strict=True))
claim("parallel_steps", len(first["losses"]), expected=50)
claim("parallel_losses_apart", apart, (0.0, 1e-6), kind="tolerance")
assert first["losses"] == second["losses"]
assert first["weights"] == second["weights"]
assert alone["losses"][0] > alone["losses"][-1] + 0.5
print(f"losses of one process  {alone['losses'][0]:.6f} ... {alone['losses'][-1]:.6f}")
print(f"losses of two          {first['losses'][0]:.6f} ... {first['losses'][-1]:.6f}")
print(f"largest difference     {apart:.1e}")

# %% tags=["hide-input"]
memory = claim(
    "scale_peak_memory", alone["peak"] / 2**20, (50, 4096), kind="statistical"
)
claim("scale_before_memory", alone["before"] / 2**20, (0, memory), kind="statistical")
speed = alone["tokens_per_second"]
reached = claim("scale_rate", speed * operations(ours) / 1e9, kind="statistical")
display.table(
    [
        (
            name,
            f"{about['tokens_per_second']:,.0f}",
            f"{about['before'] / 2**20:,.0f}",
            f"{about['peak'] / 2**20:,.0f}",
        )
        for name, about in (("one process", alone), ("two processes", first))
    ],
    header=("", "tokens a second", "MiB before", "MiB at the peak"),
    caption=f"Fifty steps of our model, and the memory of each process. One thread each of: {machine.processor()}.",
)

# %% [markdown]
r"""
All {{ parallel_steps }} losses agree to {{ parallel_losses_apart:.0e}}: rounding, since a half and a half are added in another order. The weights of the two processes are the same, bit by bit.

The last two columns are what the system says of each process. Before it had a model or a text, it had taken {{ scale_before_memory:.0f}} MiB, for Python and PyTorch themselves. At its peak it held {{ scale_peak_memory:.0f}}. That is more than we counted,
since results come and go inside of an operation too, and since measuring a loss takes a batch of its own.

On one machine, two processes bring little that two threads would not. The point is that the same program runs on many machines, where no thread can reach. Such runs overlap the messages with the way back, so that nobody waits. And where a model is too large for one machine, its
weights are shared out as well.

One mistake is hard to see. If gradients were added up and not averaged, AdamW would hardly notice: it divides them by their own size. The losses would look right, and everything that does depend on the size, clipping above all, would be wrong by the number of processes. The tests of this
book compare the gradients themselves.

## The larger recipe

This is the recipe of the last exercise of [page 13](13_broken.py): six layers of six heads, a width of `384`, a window of `256`, dropout `0.2`, and `5000` steps of `64` rows. It has a name in the package, `larger`. Plan it.
"""

# %%
recipe = TRAINING["larger"]
tokens = recipe.steps * recipe.batch_size * larger.block_size
work = tokens * operations(larger)
claim("scale_larger_parameters", parameters(larger), expected=10_788_864)
claim("scale_larger_tokens", tokens, expected=81_920_000)
claim("scale_larger_work", work / 1e15, (5.81, 5.82), kind="tolerance")

gpu, share = (
    312e12,
    0.4,
)  # NVIDIA's number for an A100 in bfloat16, and a usual part of it
claim("scale_gpu_peak", gpu / 1e12)
claim("scale_gpu_share", share)
claim("scale_gpu_seconds", work / (gpu * share), (46, 47), kind="tolerance")
claim("scale_larger_hours", work / (reached * 1e9) / 3600, kind="statistical")
print(f"parameters  {parameters(larger):,}")
print(f"tokens      {tokens:,}")
print(f"operations  {work:.3g}")
print(
    f"one thread here, at the rate of our model   {work / (reached * 1e9) / 3600:,.0f} hours"
)
print(
    f"such a GPU, at 40 % of its peak             {work / (gpu * share):,.0f} seconds"
)

# %% [markdown]
r"""
It has {{ scale_larger_parameters:,}} parameters, and reads {{ scale_larger_tokens:,}} tokens. That makes {{ scale_larger_work:.2f}} times $10^{15}$ operations. One thread of this machine, at the {{ scale_rate:.0f}} GFLOP/s that our model reached above, would need {{ scale_larger_hours:,.0f}} hours. An [A100](https://www.nvidia.com/en-us/data-center/a100/) makes at most {{ scale_gpu_peak:.0f}} times $10^{12}$
operations a second in bfloat16, says its maker. At {{ scale_gpu_share:.0%}} of that, it would be done in {{ scale_gpu_seconds:.0f}} seconds. A model this small will not reach that share: expect minutes.

The command, for a machine with a GPU:

```
gptbook train --preset larger --device cuda --out runs/larger
gptbook sample runs/larger --prompt "ROMEO:"
```

With two GPUs, put `torchrun --nproc-per-node 2 -m` in front. **The build never runs this**, so the book does not say which loss it reaches. Expect it to overfit towards the end, as on [page 14](14_overfitting.py): it reads the same million characters again and again. Look at
`metrics.jsonl` for the lowest validation loss.

## Loss and compute

What would a larger budget bring? Before one pays for it, one would like to know. Train a row of small models, each wider and longer than the one before, and watch the loss on the development split.
"""

# %%
train_part, dev_part = data.development_split(train)
points = []
for width in (16, 24, 32, 48, 64, 96):
    c = replace(ours, block_size=32, n_layer=2, n_head=2, n_embd=width)
    settings = trainer.TrainConfig(
        batch_size=16,
        steps=4 * width,
        learning_rate=4e-3,
        warmup_steps=20,
        schedule="linear",
        weight_decay=0.1,
        betas=(0.9, 0.99),
        clip=1.0,
        eval_every=1000,
    )
    torch.manual_seed(1)
    run = trainer.train(GPT(c), train_part, dev_part[:20_000], settings)
    compute = settings.steps * settings.batch_size * c.block_size * operations(c)
    points.append((compute, run.history[-1]["val_loss"]))
    print(
        f"width {width:2}: {parameters(c):7,} parameters, {compute:.1e} operations, {points[-1][1]:.3f}"
    )

# %% [markdown]
r"""
From a budget to the next, the loss falls by a similar factor. So try a **power law**: $\text{loss} = a \cdot \text{compute}^{-b}$. Its logarithm is a straight line, $\ln a - b \ln \text{compute}$, and a line is fitted by least squares. To see whether
the fit is worth anything, leave out the largest run, fit the others, and predict it.
"""


# %%
def power_law(points):
    """a and b of loss = a * compute^-b, the best straight line between logarithms."""
    x, y = torch.tensor(points, dtype=torch.float64).log().T  # (N,) each
    slope = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()
    return (y.mean() - slope * x.mean()).exp().item(), -slope.item()


a, b = power_law(points[:-1])
compute, reached_loss = points[-1]
predicted = a * compute**-b
known = corpus.name == "tinyshakespeare"
claim("fit_exponent", b, (0.02, 0.2) if known else None, kind="statistical")
claim("fit_predicted", predicted, kind="statistical")
claim("fit_reached", reached_loss, kind="statistical")
claim(
    "fit_off",
    abs(predicted - reached_loss),
    (0.0, 0.25) if known else None,
    kind="statistical",
)
claim("fit_times", compute / points[-2][0])
claim("fit_naive_off", points[-2][1] - reached_loss, kind="statistical")
if known:  # better than to guess that nothing changes
    assert abs(predicted - reached_loss) < points[-2][1] - reached_loss
print(f"loss = {a:.1f} * compute^-{b:.3f}")
print(f"predicted {predicted:.3f}, reached {reached_loss:.3f}")

# %% tags=["hide-input"] alt="Loss on the development split over operations of training, both axes logarithmic. Five points and a straight line through them fall from the upper left to the lower right. The line goes on, dashed, to the budget of a sixth point, which lies close to its end." caption="The line was fitted to the five filled points. The open one is the run that it had to predict."
fig, ax = display.figure(5.2, 3.0)
ax.plot(*zip(*points[:-1], strict=True), "o", color=display.BLUE)
ax.plot(*points[-1], "o", mfc="none", mec=display.BLUE)
for ends, style in ((points[:-1], "-"), (points[-2:], "--")):
    xs = [ends[0][0], ends[-1][0]]
    ax.plot(xs, [a * v**-b for v in xs], style, color=display.ORANGE)
ax.set_xscale("log")
ax.set_yscale("log")
ax.set_yticks([2.0, 2.5, 3.0], ["2.0", "2.5", "3.0"])
ax.minorticks_off()
ax.set_xlabel("operations")
ax.set_ylabel("loss (nats)")

# %% [markdown]
r"""
With {{ fit_times:.1f}} times the compute of the largest run that it had seen, the line said {{ fit_predicted:.2f}} nats. The run reached {{ fit_reached:.2f}}. To guess that nothing changes would have been wrong by {{ fit_naive_off:.2f}}, the line was wrong by {{ fit_off:.2f}}.

Read such a fit with care. This one is of six runs, with one seed each, over two powers of ten. The points lie near the line, and not on it. A loss cannot fall to zero, since text is not fully predictable, and a power law without a floor says that it does. Nobody tuned the learning rate for each size. And we
chose one way to spend each budget: the width, and steps in proportion. Other ways are better or worse, and the line knows nothing of them. With a text of one million characters, it must end soon in any case: larger models learn it by heart.

Kaplan and others made such fits over many powers of ten, and found lines. From theirs followed that most of a larger budget should go into a larger model. Hoffmann and others fitted anew, with schedules that fit each length, and found that model and text should grow together. Two careful groups, two lines, and two answers.

## How fast this book is

Counts and roofs say what is possible. Here is what the book reaches, beside other programs, as the scripts in `benchmarks/` measured it. A ratio above one says that ours is faster. nanoGPT runs as it does on a processor, in float32 and not compiled. "GPT" is the model of page 8, "modern" that of [page 17](17_today.py) without n-grams; both have nanoGPT's small shape and batch. The book's recipe has its own. A goal is what we set ourselves on another processor, one that multiplies bfloat16 more than four times as fast as float32. Some goals are missed on this one.

In the rows "its products alone", what is called theirs is ours too: the rate of the products of the linear layers, forwards, one at a time, with nothing between them. Beside it stands the rate of a whole step, by the count of [page 9](09_training.py). The ratio is then a share: how near a step comes to its products. Muon's own products take time and are not counted, so the share with Muon is the lower one.

For the loss after a given time the recipe is fitted to it. For the shortest it has a shorter window and no dropout. For the longest it leaves out channels too, since it reads the text many times.

<!-- benchmarks -->

## Your turn

### 1. Operations of training

*About ten minutes.* Write `operations(L, C, T, V)` for the GPT of this book: how many multiplications and additions does training spend on one token? Count the products of matrices only, forwards and backwards, hidden scores included.

??? tip "Hint"

    Count the forward way for a token first: two operations for each weight of the blocks and of the unembedding, and two products of attention with $T$ keys and $T$ values. The way back takes twice that.

Check yours with `exercises.check("training-operations", operations)`.
"""

# %% tags=["solution"]
from gptbook import exercises


def operations(L, C, T, V):
    forward = 2 * (12 * L * C**2 + V * C) + 2 * L * 2 * T * C
    return 3 * forward


exercises.check("training-operations", operations)

# %% [markdown]
r"""
### 2. Under the roof

*About five minutes.* Write `attainable(operations, moved, peak, bandwidth)`: at most how many operations a second can a piece of work reach that makes `operations` and moves `moved` bytes?

??? tip "Hint"

    One limit does not depend on the work. The other is the bandwidth times the intensity.

Check yours with `exercises.check("roofline", attainable)`.
"""


# %% tags=["solution"]
def attainable(operations, moved, peak, bandwidth):
    return min(peak, bandwidth * operations / moved)


exercises.check("roofline", attainable)

# %% [markdown]
r"""
### 3. Eight digits

*About fifteen minutes.* Write `rounded(x)`. It gets a number and returns the nearest one that bfloat16 has, with eight binary digits. In the middle between two, the one whose last digit is 0 wins. PyTorch would do it for you. Do it without.

??? tip "Hint"

    Which power of two is the step of bfloat16 near `x`? For 1 it is $2^{-7}$, for 2 it is $2^{-6}$. Count `x` in such steps. Python's `round` knows what to do in the middle. Zero is a case of its own.

Check yours with `exercises.check("round-to-bfloat16", rounded)`.
"""

# %% tags=["solution"]
import math


def rounded(x):
    if x == 0:
        return x
    step = 2.0 ** (math.floor(math.log2(abs(x))) - 7)
    return round(x / step) * step


exercises.check("round-to-bfloat16", rounded)

# %% [markdown]
r"""
### 4. Unequal shares

*About five minutes.* The rows of a batch do not always divide evenly. Write `combine(gradients, counts)`. It gets a list of tensors, the gradient of the mean loss over each share, and the list of how many rows each share has. It returns the gradient of the mean loss over all rows.

??? tip "Hint"

    The theorem above has the formula.

Check yours with `exercises.check("share-a-batch", combine)`.
"""


# %% tags=["solution"]
def combine(gradients, counts):
    return sum(n * g for g, n in zip(gradients, counts, strict=True)) / sum(counts)


exercises.check("share-a-batch", combine)

# %% [markdown]
r"""
## Recap

* Training costs six operations for each weight and token, and $12 L T C$ for attention. The rule of 6 N is good where tables are small and windows short.
* It keeps sixteen bytes for each parameter, and activations that grow with the batch.
* Work with few operations for each byte waits for the memory. Writing one token at a time is such work.
* bfloat16 keeps eight binary digits. Products bear that, sums and weights do not.
* Compiling fuses what stands between products.
* The mean of equal shares' gradients is the gradient of the whole.
* A line through small runs predicts the next one, and says nothing of what it has not seen.

## What this page left out

*Larger machines.* Weights, gradients and averages can be shared out among processes, layers can lie on different machines, and a matrix can be cut between them. *Recomputing.* One can throw activations away and compute them again on the way back: less memory for a third more work. *Other numbers.* float16 needs
its losses scaled, eight bits need more care still. *Attention without its matrix* of weights, in pieces that stay in the cache, which changes the bytes of long windows. *Better fits*, with a term for the size of the model, one for the text, and a floor.

Where to read on:

* Williams, Waterman and Patterson, [Roofline: an insightful visual performance model](https://doi.org/10.1145/1498765.1498785), for the roof.
* Micikevicius et al., [Mixed precision training](https://arxiv.org/abs/1710.03740), for master weights, and Kalamkar et al., [A study of BFLOAT16 for deep learning training](https://arxiv.org/abs/1905.12322).
* Li et al., [PyTorch distributed](https://arxiv.org/abs/2006.15704): data parallel training with messages that overlap the way back.
* Ansel et al., [PyTorch 2](https://doi.org/10.1145/3620665.3640366), for `torch.compile`.
* Kaplan et al., [Scaling laws for neural language models](https://arxiv.org/abs/2001.08361), and Hoffmann et al., [Training compute-optimal large language models](https://arxiv.org/abs/2203.15556).
* Korthikanti et al., [Reducing activation recomputation in large transformer models](https://arxiv.org/abs/2205.05198): activations counted, for large models.

[Page 19](19_chatgpt.py) goes another way: not a larger model, but other examples.
"""
