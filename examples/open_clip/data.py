"""Write scikit-learn's digits as images with captions, and tables of them: digits/train.csv and val.csv."""

import csv
from pathlib import Path

from PIL import Image
from sklearn.datasets import load_digits

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

folder = Path(__file__).resolve().parent / "digits"
folder.mkdir(exist_ok=True)
digits = load_digits()
for name, numbers in (("train", range(512)), ("val", range(1200, 1456))):
    with (folder / f"{name}.csv").open("w", newline="") as file:
        table = csv.writer(file, delimiter="\t")
        table.writerow(["filepath", "title"])
        for k in numbers:
            path = folder / f"{k}.png"
            Image.fromarray((digits.images[k] * 15.9).astype("uint8")).convert("RGB").resize((32, 32)).save(path)
            table.writerow([path, f"the digit {NAMES[digits.target[k]]}"])
