from absent import absent

efficientnet_v2_s = absent("torchvision")
