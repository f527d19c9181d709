"""Checks of anybody's GPT: questions that a right model answers well and a wrong one does not; page 8.

    report = check_model(model, vocab_size=65, block_size=64, expect=GPTConfig())
    print(report)

| module | what it holds |
|---|---|
| `report` | `Result` and `Report`: what was found |
| `subject` | how somebody's model is copied and called, and never changed |
| `checks` | the questions, one function each, and `check_model`, which asks them all |
| `anatomy` | which weight of a model is what |
| `structure` | what a model computes: known designs, at work with its weights |
| `inside` | the questions about that: residuals, norms, activation, attention, layers |
| `parameters` | the number of parameters by formula |
| `measure` | the leak matrix and the shape table, for pages |
"""

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
from gptbook.verify.inside import activation, attention, embeddings, layers, norms, residual
from gptbook.verify.measure import Stage, leak_matrix, shape_table
from gptbook.verify.parameters import ParameterTable, Part, expected_parameters, parameter_table
from gptbook.verify.report import Report, Result

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
    "check_model",
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
