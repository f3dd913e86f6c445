from absent import absent

from . import functional

__all__ = ["Compose", "Normalize", "Resize", "ToTensor", "functional"]
Compose = Normalize = Resize = ToTensor = absent("torchvision")
