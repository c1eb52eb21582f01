"""Transformers' own Trainer: GPT-2 of two layers on the bytes of Python's manual."""

import argparse
from pydoc_data.topics import topics

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
for name in ("--lr", "--wd"):
    parser.add_argument(name, type=float)
parser.add_argument("--seed", type=int)
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--out")
parser.add_argument("--resume")
options = parser.parse_args()

text = torch.tensor(list("".join(topics.values()).encode()[:20_000]))
rows = [{"input_ids": row, "labels": row} for row in text[: len(text) // 32 * 32].view(-1, 32)]
arguments = TrainingArguments(
    options.out, learning_rate=options.lr, weight_decay=options.wd, seed=options.seed, max_steps=options.steps,
    per_device_train_batch_size=8, eval_strategy="steps", save_strategy="steps", eval_steps=10, save_steps=10,
    logging_steps=10, use_cpu=True, report_to="none", disable_tqdm=True,
)  # fmt: skip
torch.manual_seed(options.seed)
model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=32, n_embd=32, n_layer=2, n_head=2))
trainer = Trainer(model, arguments, train_dataset=rows[:-40], eval_dataset=rows[-40:])
trainer.train(resume_from_checkpoint=options.resume)
trainer.save_state()
