"""What the programs read: images in files, and text."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset
from torchvision import transforms


class Images(Dataset[tuple[Tensor, int]]):
    """JPEG files of photographs' size, decoded and cropped as for ImageNet."""

    def __init__(self, folder: Path, count: int = 64) -> None:
        self.paths = [folder / f"{number}.jpeg" for number in range(count)]
        chance = np.random.default_rng(0)
        for path in self.paths:
            coarse = Image.fromarray(chance.integers(0, 256, (24, 32, 3), dtype=np.uint8))
            buffer = io.BytesIO()
            coarse.resize((640, 480), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
            path.write_bytes(buffer.getvalue())
        self.transform = transforms.Compose(
            [
                transforms.RandomResizedCrop(224),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
            ]
        )

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with Image.open(self.paths[index % len(self.paths)]) as image:
            return self.transform(image.convert("RGB")), index % 1000


def sentences(count: int) -> list[str]:
    """Sentences of made-up words."""
    chance = np.random.default_rng(0)
    words = ["".join(chr(97 + c) for c in chance.integers(0, 26, 6)) for _ in range(5000)]
    return [" ".join(chance.choice(words, 200)) for _ in range(count)]


def batches(tokens: list[list[int]], length: int) -> Tensor:
    """Token ids of equal length."""
    return torch.tensor([(ids * (length // len(ids) + 1))[:length] for ids in tokens])
