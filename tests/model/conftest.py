"""One thread: models this small lose more to threads than they gain, most of all beside other work."""

import torch

torch.set_num_threads(1)
