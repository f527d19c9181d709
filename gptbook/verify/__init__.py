"""Checks of anybody's GPT: questions that a right model answers well and a wrong one does not; page 8.

    report = check_model(model, vocab_size=65, block_size=64, expect=GPTConfig())
    print(report)

| module | what it holds |
|---|---|
| `report` | `Result` and `Report`: what was found |
| `subject` | how somebody's model is copied and called, and never changed |
| `checks` | the questions, one function each, and `check_model`, which asks them all |
| `writing` | checks of a sampler, of the loop that generates, of a cache |
| `learning` | checks of batches, tokenizer, optimizer, schedule, evaluation |
| `anatomy` | which weight of a model is what |
| `structure` | what a model computes: known designs, at work with its weights |
| `inside` | the questions about that: residuals, norms, activation, attention, layers |
| `parameters` | the number of parameters by formula |
| `functions`, `heads`, `blocks` | the same for what a reader writes on the way: attention, a layer norm, a block, ... |
| `kinds`, `catalogue` | known wrong versions, and how an answer is recognised as one of them |
| `measure` | the leak matrix and the shape table, for pages |
"""

from gptbook.verify.blocks import check_block
from gptbook.verify.checks import (
    batch_independent,
    causal,
    check_model,
    deterministic,
    dropout,
    finite,
    gradients,
    initial_loss,
    loss,
    memorise,
    parameter_count,
    position_sensitive,
    reach,
    shapes,
)
from gptbook.verify.functions import (
    check_attention,
    check_averaging,
    check_gelu,
    check_layer_norm,
    check_loss,
)
from gptbook.verify.heads import check_multihead
from gptbook.verify.inside import activation, attention, embeddings, layers, norms, residual
from gptbook.verify.learning import (
    check_batches,
    check_evaluate,
    check_optimizer,
    check_schedule,
    check_tokenizer,
)
from gptbook.verify.measure import Stage, leak_matrix, shape_table
from gptbook.verify.parameters import ParameterTable, Part, expected_parameters, parameter_table
from gptbook.verify.report import Report, Result
from gptbook.verify.writing import check_cache, check_generate, check_sampler

__all__ = [
    "ParameterTable",
    "Part",
    "Report",
    "Result",
    "Stage",
    "activation",
    "attention",
    "batch_independent",
    "causal",
    "check_attention",
    "check_averaging",
    "check_batches",
    "check_block",
    "check_cache",
    "check_evaluate",
    "check_gelu",
    "check_generate",
    "check_layer_norm",
    "check_loss",
    "check_model",
    "check_multihead",
    "check_optimizer",
    "check_sampler",
    "check_schedule",
    "check_tokenizer",
    "deterministic",
    "dropout",
    "embeddings",
    "expected_parameters",
    "finite",
    "gradients",
    "initial_loss",
    "layers",
    "leak_matrix",
    "loss",
    "memorise",
    "norms",
    "parameter_count",
    "parameter_table",
    "position_sensitive",
    "reach",
    "residual",
    "shape_table",
    "shapes",
]
