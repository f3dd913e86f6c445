from absent import absent

resize = absent("torchvision")
