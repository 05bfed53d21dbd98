"""The shape of an image, and the number of classes, of the data sets that configs name."""

SHAPES = {"digits": ((8, 8, 1), 10), "fashion_mnist_small": ((28, 28, 1), 10),
          "cifar10": ((32, 32, 3), 10), "cifar100": ((32, 32, 3), 100),
          "tiny_imagenet": ((64, 64, 3), 200), "imagenet2012": ((224, 224, 3), 1000)}
