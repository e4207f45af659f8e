"""The programs of the corpus: a row for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.own_job.strangers import material
from benchmarks.own_job.strangers.material import Recipe


class Source(NamedTuple):
    """`paths`: files and folders of the repository that the program needs; empty: all."""

    repository: str
    commit: str
    paths: tuple[str, ...] = ("",)


class Edit(NamedTuple):
    """`old` becomes `new` in a file of the source, wherever it stands. Raises ValueError in `apply`
    where `old` does not stand there."""

    file: str
    old: str
    new: str


class Program(NamedTuple):
    """A program.

    `source`: None for a program of drivers.py. `command`: words; `{python}` is the Python of the
    programs, `{here}` this folder. `folder`: where it runs, within the source. `needs`: modules
    without which the program is left out. `data`: recipes by folder or file within the source.
    `edits`: what makes the program small, takes a download out, or builds a fault in. `truth`:
    rules that name the fault; empty: no fault is built in. `per_step`: calls of `optimizer.step()`
    in a step. `varies`: why two runs of the program differ by themselves; empty: they must not.
    `gain`: the least gain that a proven change must bring, if one must be found. `options`: of
    gpuconsole.
    """

    name: str
    source: Source | None
    command: tuple[str, ...]
    folder: str = "."
    needs: tuple[str, ...] = ()
    data: Mapping[str, Recipe] = {}
    edits: tuple[Edit, ...] = ()
    truth: tuple[str, ...] = ()
    per_step: float = 1
    varies: str = ""
    gain: float = 0.0
    options: tuple[str, ...] = ()


def examples(*paths: str) -> Source:
    return Source("pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8", paths)


def gan(name: str) -> Source:
    return Source(
        "eriklindernoren/PyTorch-GAN",
        "36d3c77e5ff20ebe0aeefd322326a134a279b93e",
        (f"implementations/{name}",),
    )


def tutorial(path: str) -> Source:
    return Source(
        "yunjey/pytorch-tutorial",
        "0500d3df5a2a8080ccfccbc00aca0eacc21818db",
        (f"tutorials/{path}",),
    )


def driver(name: str, *needs: str, **options: object) -> Program:
    """A small program of our own around a library's trainer: what its quick start shows, with
    random data."""
    return Program(name, None, ("{python}", ("{here}/drivers.py"), name), needs=needs, **options)  # type: ignore[arg-type]


NANOGPT = Source(
    "karpathy/nanoGPT",
    "3adf61e154c3fe3fca428ad6bc3818b27a3b8291",
    ("train.py", "model.py", "configurator.py", "config"),
)
MINGPT = Source(
    "karpathy/minGPT", "37baab71b9abea1b76ab957409a1cc2fbfba8a26", ("mingpt", "projects")
)
TIMM = Source("huggingface/pytorch-image-models", "aa4b5850c1543fa488abf260f18390eda46cf85d")
ACCELERATE = Source(
    "huggingface/accelerate", "16cb6eb80dd9aa8b4df1a63ef57863e455d53b83", ("examples",)
)
IGNITE = Source(
    "pytorch/ignite", "de08e799cfb55a6cf4aa778575d6bad725385453", ("examples/mnist", "examples/gan")
)
PYRO = Source("pyro-ppl/pyro", "ff6ae1c9572591791aae8842bcd702fcf0b46fd6", ("examples/lda.py",))
CLEANRL = Source(
    "vwxyzjn/cleanrl",
    "fe8d8a03c41a7ef5b523e2e354bd01c363e786bb",
    ("cleanrl/dqn.py", "cleanrl/ppo.py", "cleanrl_utils"),
)
SKORCH = Source(
    "skorch-dev/skorch",
    "5db0ddc962117a2c3a646910ecd2e70253ff8e87",
    ("examples/cli", "notebooks/Basic_Usage.ipynb"),
)
LIGHTNING = Source(
    "Lightning-AI/pytorch-lightning",
    "7f0c3436cd3f6ad3753125672024fc415cbcb414",
    ("examples/fabric/image_classifier", "examples/pytorch/basics", "examples/pytorch/bug_report"),
)
TCN = Source(
    "locuslab/TCN",
    "2f8c2b817050206397458dfd1f5a25ce8a32fe65",
    ("TCN/__init__.py", "TCN/tcn.py", "TCN/adding_problem", "TCN/copy_memory"),
)
CHAR_RNN = Source("spro/char-rnn.pytorch", "282bcb6b15ab3929d6a588b455cfc0f19f32add4")
HYDRA = Source(
    "ashleve/lightning-hydra-template",
    "bddbc24b82ab6ccfa6243e815a49dc5bfe8d4144",
    ("configs", "src", ".project-root"),
)

MNIST = {"data": material.mnist}
MNIST_MANY = {"data": lambda folder: material.mnist(folder, 20_000)}
"""An epoch that is long enough for a trial, so that no evaluation falls into a block."""
MNIST_TRAIN = ("{python}", "main.py", "--epochs", "4", "--log-interval", "40")
MNIST_LONG = ("{python}", "main.py", "--epochs", "1", "--batch-size", "16", "--log-interval", "160")
LOADER = ("input.cpu_transform", "input.too_few_workers", "input.slow_storage")
CLOCK = "it prints a clock"
SMALL_GPT = (
    "{python}", "train.py", "config/train_shakespeare_char.py", "--device=cpu", "--compile=False",
    "--block_size=64", "--batch_size=12", "--n_layer=4", "--n_head=4", "--n_embd=128",
    "--max_iters=300", "--lr_decay_iters=300", "--eval_iters=5", "--dtype=float32",
)  # fmt: skip
TOKENS = {"data/shakespeare_char": material.tokens}

PROGRAMS = (
    # --- as their authors wrote them --------------------------------------------------------------
    Program("examples mnist", examples("mnist"), MNIST_TRAIN, "mnist", ("torchvision",), MNIST),
    Program(
        "examples mnist_rnn",
        examples("mnist_rnn"),
        ("{python}", "main.py", "--epochs", "24"),
        "mnist_rnn",
        ("torchvision",),
        MNIST,
    ),
    Program(
        "examples mnist_hogwild",
        examples("mnist_hogwild"),
        ("{python}", "main.py", "--epochs", "8"),
        "mnist_hogwild",
        ("torchvision",),
        MNIST,
        varies="two processes write the same weights",
    ),
    Program(
        "examples mnist_forward_forward",
        examples("mnist_forward_forward"),
        ("{python}", "main.py", "--epochs", "300", "--train_size", "1000", "--test_size", "200"),
        "mnist_forward_forward",
        ("torchvision",),
        {"mnist_forward_forward/data": material.mnist},
        varies="it shuffles without a seed",
    ),
    Program(
        "examples vae",
        examples("vae"),
        ("{python}", "main.py", "--epochs", "30"),
        "vae",
        ("torchvision",),
        {**MNIST, "vae/results": material.folder},
    ),
    Program(
        "examples siamese_network",
        examples("siamese_network"),
        ("{python}", "main.py", "--epochs", "1"),
        "siamese_network",
        ("torchvision",),
        MNIST,
        varies="it draws pairs without a seed",
    ),
    Program(
        "examples regression",
        examples("regression"),
        ("{python}", "main.py"),
        "regression",
        edits=(
            Edit("regression/main.py", "loss < 1e-3", "batch_idx == 250000"),
            Edit("regression/main.py", "import torch\n", "import torch\ntorch.manual_seed(0)\n"),
        ),
    ),
    Program(
        "examples time_sequence_prediction",
        examples("time_sequence_prediction"),
        ("sh", "-c", "{python} generate_sine_wave.py && {python} train.py --steps 5"),
        "time_sequence_prediction",
        ("matplotlib",),
        edits=(
            Edit(
                "time_sequence_prediction/generate_sine_wave.py",
                "L = 1000\nN = 100",
                "L = 200\nN = 40",
            ),
            Edit(
                "time_sequence_prediction/train.py",
                "'traindata.pt'",
                "'traindata.pt', weights_only=False",
            ),
        ),
    ),
    Program(
        "examples word_language_model LSTM",
        examples(
            "word_language_model/main.py",
            "word_language_model/data.py",
            "word_language_model/model.py",
        ),
        (
            "{python}",
            "main.py",
            "--model",
            "LSTM",
            "--emsize",
            "64",
            "--nhid",
            "64",
            "--epochs",
            "50",
        ),
        "word_language_model",
        data={"word_language_model/data/wikitext-2": material.corpus},
        varies=CLOCK,
    ),
    Program(
        "examples word_language_model Transformer",
        examples(
            "word_language_model/main.py",
            "word_language_model/data.py",
            "word_language_model/model.py",
        ),
        (
            "{python}",
            "main.py",
            "--model",
            "Transformer",
            "--emsize",
            "64",
            "--nhid",
            "64",
            "--epochs",
            "40",
            "--lr",
            "1",
        ),
        "word_language_model",
        data={"word_language_model/data/wikitext-2": material.corpus},
        varies=CLOCK,
    ),
    Program(
        "examples dcgan",
        examples("dcgan"),
        (
            "{python}",
            "main.py",
            "--dataset",
            "fake",
            "--batchSize",
            "16",
            "--ngf",
            "12",
            "--ndf",
            "12",
            "--niter",
            "8",
            "--manualSeed",
            "1",
        ),
        "dcgan",
        ("torchvision",),
        per_step=2,
    ),
    Program(
        "examples imagenet",
        examples("imagenet"),
        (
            "{python}",
            "main.py",
            "--dummy",
            "-a",
            "squeezenet1_1",
            "-b",
            "8",
            "-j",
            "1",
            "--epochs",
            "1",
            "--lr",
            "0.001",
            "--seed",
            "1",
            "--no-accel",
        ),
        "imagenet",
        ("torchvision",),
        edits=(Edit("imagenet/main.py", "1281167", "800"), Edit("imagenet/main.py", "50000", "48")),
        varies=CLOCK,
    ),
    Program(
        "examples reinforce",
        examples("reinforcement_learning"),
        ("{python}", "reinforce.py"),
        "reinforcement_learning",
        ("gymnasium",),
        edits=(
            Edit(
                "reinforcement_learning/reinforce.py",
                "running_reward > env.spec.reward_threshold",
                "i_episode == 300",
            ),
        ),
    ),
    Program(
        "examples actor_critic",
        examples("reinforcement_learning"),
        ("{python}", "actor_critic.py"),
        "reinforcement_learning",
        ("gymnasium",),
        edits=(
            Edit(
                "reinforcement_learning/actor_critic.py",
                "running_reward > env.spec.reward_threshold",
                "i_episode == 700",
            ),
        ),
    ),
    Program(
        "examples ddp tutorial, 2 ranks",
        examples("distributed/ddp-tutorial-series"),
        (
            "{python}",
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            "multigpu_torchrun.py",
            "400",
            "100",
        ),
        "distributed/ddp-tutorial-series",
        edits=(
            Edit(
                "distributed/ddp-tutorial-series/multigpu_torchrun.py",
                '    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\n',
                "",
            ),
            Edit("distributed/ddp-tutorial-series/multigpu_torchrun.py", "nccl", "gloo"),
            Edit(
                "distributed/ddp-tutorial-series/multigpu_torchrun.py",
                'self.gpu_id = int(os.environ["LOCAL_RANK"])',
                "self.gpu_id = torch.device('cpu')",
            ),
            Edit(
                "distributed/ddp-tutorial-series/multigpu_torchrun.py",
                ", device_ids=[self.gpu_id]",
                "",
            ),
            Edit(
                "distributed/ddp-tutorial-series/multigpu_torchrun.py",
                "pin_memory=True",
                "pin_memory=False",
            ),
        ),
        varies="the ranks share the output",
    ),
    Program("nanoGPT", NANOGPT, SMALL_GPT, data=TOKENS, varies=CLOCK),
    Program(
        "minGPT adder",
        MINGPT,
        ("{python}", "projects/adder/adder.py", "--trainer.max_iters=1800"),
        data={},
        varies=CLOCK,
        edits=(
            Edit(
                "projects/adder/adder.py",
                "import os\n",
                "import os, sys\nsys.path.insert(0, '.')\n",
            ),
        ),
    ),
    Program(
        "minGPT chargpt",
        MINGPT,
        (
            "{python}",
            "projects/chargpt/chargpt.py",
            "--trainer.max_iters=250",
            "--model.model_type=gpt-nano",
            "--trainer.batch_size=16",
        ),
        data={"input.txt": material.words},
        varies=CLOCK,
        edits=(
            Edit(
                "projects/chargpt/chargpt.py",
                "import os\n",
                "import os, sys\nsys.path.insert(0, '.')\n",
            ),
            Edit("projects/chargpt/chargpt.py", "O God, O God!", "a"),
        ),
    ),
    Program(
        "timm train.py",
        TIMM,
        (
            "{python}",
            "train.py",
            "--data-dir",
            "photos",
            "--model",
            "mobilenetv3_small_050",
            "--epochs",
            "14",
            "-b",
            "16",
            "-j",
            "1",
            "--img-size",
            "96",
            "--num-classes",
            "4",
            "--device",
            "cpu",
            "--log-interval",
            "2",
        ),
        needs=("torchvision", "yaml"),
        data={"photos": lambda folder: material.photos(folder, 480)},
        varies=CLOCK,
    ),
    Program(
        "accelerate cv_example",
        ACCELERATE,
        ("{python}", "cv_example.py", "--data_dir", "pets", "--cpu"),
        "examples",
        ("accelerate", "timm", "torchvision"),
        {"examples/pets": lambda folder: material.pets(folder, 900)},
        (
            Edit("examples/cv_example.py", "pretrained=True", "pretrained=False"),
            Edit("examples/cv_example.py", "resnet50d", "resnet10t"),
            Edit("examples/cv_example.py", "224", "96"),
            Edit("examples/cv_example.py", '"num_epochs": 3', '"num_epochs": 5'),
        ),
    ),
    Program(
        "ignite mnist",
        IGNITE,
        ("{python}", "mnist.py", "--epochs", "12"),
        "examples/mnist",
        ("ignite", "torchvision", "tqdm"),
        {"examples/mnist": material.mnist},
        varies=CLOCK,
    ),
    Program(
        "ignite dcgan",
        IGNITE,
        (
            "{python}",
            "dcgan.py",
            "--dataset",
            "fake",
            "--dataroot",
            "fake",
            "--output-dir",
            "out",
            "--batch-size",
            "2",
            "--epochs",
            "12",
            "--g-filters",
            "12",
            "--d-filters",
            "12",
            "--seed",
            "1",
        ),
        "examples/gan",
        ("ignite", "torchvision"),
        {"examples/gan/out": material.folder},
        per_step=2,
        varies=CLOCK,
    ),
    Program(
        "pyro lda",
        PYRO,
        ("{python}", "examples/lda.py", "-n", "120"),
        needs=("pyro",),
        per_step=8,
        edits=(Edit("examples/lda.py", 'startswith("1.9.1")', 'startswith("1.9")'),),
    ),
    Program(
        "cleanrl dqn",
        CLEANRL,
        ("{python}", "cleanrl/dqn.py", "--total-timesteps", "120000"),
        needs=("gymnasium", "tyro"),
        varies=CLOCK,
        edits=(
            Edit("cleanrl/dqn.py", 'infos["final_observation"]', 'infos["final_obs"]'),
            Edit("cleanrl/dqn.py", "if trunc:", 'if trunc and "final_obs" in infos:'),
            Edit("cleanrl/dqn.py", "import os\n", "import os, sys\nsys.path.insert(0, '.')\n"),
        ),
    ),
    Program(
        "cleanrl ppo",
        CLEANRL,
        ("{python}", "cleanrl/ppo.py", "--total-timesteps", "140000"),
        needs=("gymnasium", "tyro"),
        varies=CLOCK,
    ),
    Program(
        "skorch cli",
        SKORCH,
        ("{python}", "train.py", "net", "--max_epochs=400"),
        "examples/cli",
        ("skorch", "fire"),
        varies=CLOCK,
    ),
    Program(
        "a notebook by nbconvert",
        SKORCH,
        (
            "sh",
            "-c",
            (
                "{python} -m jupyter nbconvert --to script Basic_Usage.ipynb && {python}"
                " Basic_Usage.py"
            ),
        ),
        "notebooks",
        ("skorch", "nbconvert", "IPython"),
        varies=CLOCK,
        edits=(Edit("notebooks/Basic_Usage.ipynb", "max_epochs=20", "max_epochs=150"),),
    ),
    Program(
        "Fabric image classifier",
        LIGHTNING,
        ("{python}", "examples/fabric/image_classifier/train_fabric.py", "--epochs", "3"),
        needs=("lightning", "torchvision", "torchmetrics"),
        data={"Datasets": material.mnist},
        varies=CLOCK,
    ),
    Program(
        "Lightning image classifier",
        LIGHTNING,
        (
            "{python}",
            "examples/pytorch/basics/backbone_image_classifier.py",
            "--trainer.max_epochs=4",
            "--trainer.accelerator=cpu",
            "--data.batch_size=32",
        ),
        needs=("lightning", "torchvision", "jsonargparse"),
        data={"examples/Datasets": material.mnist, "data": material.mnist},
        varies=CLOCK,
        edits=(
            Edit(
                "examples/pytorch/basics/backbone_image_classifier.py",
                "[55000, 5000]",
                "[5000, 1000]",
            ),
        ),
    ),
    Program(
        "TCN adding problem",
        TCN,
        ("{python}", "add_test.py", "--epochs", "1", "--levels", "3", "--seq_len", "100", "--cuda"),
        "TCN/adding_problem",
        edits=(
            Edit("TCN/adding_problem/add_test.py", "data_generator(50000", "data_generator(12000"),
        ),
    ),
    Program(
        "TCN copy memory",
        TCN,
        (
            "{python}",
            "copymem_test.py",
            "--epochs",
            "1",
            "--levels",
            "3",
            "--blank_len",
            "100",
            "--cuda",
        ),
        "TCN/copy_memory",
        varies=CLOCK,
    ),
    Program(
        "PyTorch-GAN gan",
        gan("gan"),
        ("{python}", "gan.py", "--n_epochs", "6"),
        "implementations/gan",
        ("torchvision",),
        {"data/mnist": material.mnist},
        per_step=2,
        edits=(
            Edit(
                "implementations/gan/gan.py",
                "opt = parser.parse_args()",
                "opt = parser.parse_args(); torch.manual_seed(0); np.random.seed(0)",
            ),
        ),
    ),
    Program(
        "PyTorch-GAN wgan_gp",
        gan("wgan_gp"),
        ("{python}", "wgan_gp.py", "--n_epochs", "4"),
        "implementations/wgan_gp",
        ("torchvision",),
        {"data/mnist": material.mnist},
        per_step=452 / 376,
        edits=(
            Edit(
                "implementations/wgan_gp/wgan_gp.py",
                "opt = parser.parse_args()",
                "opt = parser.parse_args(); torch.manual_seed(0); np.random.seed(0)",
            ),
        ),
    ),
    Program(
        "tutorial CNN",
        tutorial("02-intermediate/convolutional_neural_network"),
        ("{python}", "main.py"),
        "tutorials/02-intermediate/convolutional_neural_network",
        ("torchvision",),
        {"data": material.mnist, "tutorials/data": material.mnist},
        edits=(
            Edit(
                "tutorials/02-intermediate/convolutional_neural_network/main.py",
                "import torch \n",
                "import torch \ntorch.manual_seed(0)\n",
            ),
        ),
    ),
    Program(
        "tutorial RNN",
        tutorial("02-intermediate/recurrent_neural_network"),
        ("{python}", "main.py"),
        "tutorials/02-intermediate/recurrent_neural_network",
        ("torchvision",),
        {"tutorials/data": material.mnist},
        edits=(
            Edit(
                "tutorials/02-intermediate/recurrent_neural_network/main.py",
                "import torch \n",
                "import torch \ntorch.manual_seed(0)\n",
            ),
            Edit(
                "tutorials/02-intermediate/recurrent_neural_network/main.py",
                "num_epochs = 2",
                "num_epochs = 8",
            ),
        ),
    ),
    Program(
        "tutorial VAE",
        tutorial("03-advanced/variational_autoencoder"),
        ("{python}", "main.py"),
        "tutorials/03-advanced/variational_autoencoder",
        ("torchvision",),
        {"tutorials/data": material.mnist},
        edits=(
            Edit(
                "tutorials/03-advanced/variational_autoencoder/main.py",
                "import torch\n",
                "import torch\ntorch.manual_seed(0)\n",
            ),
        ),
    ),
    Program(
        "two trainings in one shell script",
        Source(
            "yunjey/pytorch-tutorial",
            "0500d3df5a2a8080ccfccbc00aca0eacc21818db",
            (
                "tutorials/02-intermediate/convolutional_neural_network",
                "tutorials/02-intermediate/recurrent_neural_network",
            ),
        ),
        (
            "sh",
            "-c",
            (
                "(cd convolutional_neural_network && {python} main.py) && (cd"
                " recurrent_neural_network && {python} main.py)"
            ),
        ),
        "tutorials/02-intermediate",
        ("torchvision",),
        {"tutorials/data": material.mnist},
        edits=(
            Edit(
                "tutorials/02-intermediate/convolutional_neural_network/main.py",
                "import torch \n",
                "import torch \ntorch.manual_seed(0)\n",
            ),
            Edit(
                "tutorials/02-intermediate/recurrent_neural_network/main.py",
                "import torch \n",
                "import torch \ntorch.manual_seed(0)\n",
            ),
        ),
    ),
    Program(
        "char-rnn",
        CHAR_RNN,
        (
            "{python}",
            "train.py",
            "input.txt",
            "--n_epochs",
            "250",
            "--chunk_len",
            "60",
            "--batch_size",
            "20",
        ),
        needs=("unidecode", "tqdm"),
        data={"input.txt": material.words},
        varies=CLOCK,
        edits=(Edit("train.py", "loss.data[0]", "loss.item()"),),
    ),
    Program(
        "Hydra and Lightning template",
        HYDRA,
        ("{python}", "src/train.py", "trainer=cpu", "trainer.max_epochs=30", "test=false"),
        needs=("hydra", "rootutils", "lightning", "torchvision"),
        data={"data": material.mnist},
        varies=CLOCK,
        edits=(
            Edit("configs/data/mnist.yaml", "[55_000, 5_000, 10_000]", "[5_000, 1_000, 1_000]"),
        ),
    ),
    # --- libraries --------------------------------------------------------------------------------
    driver("hf_trainer", "transformers", varies=CLOCK),
    driver("trl_sft", "trl", "datasets", varies=CLOCK),
    driver("peft_lora", "peft", "transformers"),
    driver("sentence_transformers", "sentence_transformers", "datasets", varies=CLOCK),
    driver("diffusers_unet", "diffusers"),
    driver("fastai_learner", "fastai", varies=CLOCK),
    driver("stable_baselines3", "stable_baselines3", varies=CLOCK),
    driver("torch_geometric", "torch_geometric"),
    driver("ultralytics_yolo", "ultralytics", varies=CLOCK),
    driver("composer_trainer", "composer"),
    driver("spawned_workers"),
    driver("iterable_stream"),
    # --- with a fault built in --------------------------------------------------------------------
    Program(
        "mnist, slow sample",
        examples("mnist"),
        MNIST_LONG,
        "mnist",
        ("torchvision",),
        MNIST_MANY,
        (
            Edit(
                "mnist/main.py",
                "transforms.ToTensor(),",
                "transforms.ToTensor(), transforms.Lambda(lambda x: (time.sleep(0.001), x)[1]),",
            ),
            Edit("mnist/main.py", "import argparse\n", "import argparse, time\n"),
        ),
        LOADER,
        gain=1.5,
    ),
    Program(
        "mnist, computing transform",
        examples("mnist"),
        MNIST_TRAIN,
        "mnist",
        ("torchvision",),
        MNIST,
        (
            Edit(
                "mnist/main.py",
                "transforms.ToTensor(),",
                (
                    "transforms.RandomAffine(20, (0.1, 0.1), (0.8, 1.2)), transforms.Resize(96),"
                    " transforms.GaussianBlur(9), transforms.Resize(28), transforms.ToTensor(),"
                ),
            ),
        ),
        LOADER,
        gain=1.2,
    ),
    Program(
        "tutorial CNN, slow sample",
        tutorial("02-intermediate/convolutional_neural_network"),
        ("{python}", "main.py"),
        "tutorials/02-intermediate/convolutional_neural_network",
        ("torchvision",),
        {"tutorials/data": material.mnist},
        truth=LOADER,
        gain=1.3,
        edits=(
            Edit(
                "tutorials/02-intermediate/convolutional_neural_network/main.py",
                "import torch \n",
                "import time\nimport torch \ntorch.manual_seed(0)\n",
            ),
            Edit(
                "tutorials/02-intermediate/convolutional_neural_network/main.py",
                "batch_size = 100",
                "batch_size = 20",
            ),
            Edit(
                "tutorials/02-intermediate/convolutional_neural_network/main.py",
                "num_epochs = 5",
                "num_epochs = 4",
            ),
            Edit(
                "tutorials/02-intermediate/convolutional_neural_network/main.py",
                "transform=transforms.ToTensor(),",
                "transform=transforms.Compose([transforms.ToTensor(), slow]),",
            ),
            Edit(
                "tutorials/02-intermediate/convolutional_neural_network/main.py",
                "# MNIST dataset\n",
                "def slow(image):\n    time.sleep(0.001)\n    return image\n\n\n# MNIST dataset\n",
            ),
        ),
    ),
    Program(
        "mnist, batch of one",
        examples("mnist"),
        ("{python}", "main.py", "--epochs", "1", "--batch-size", "2", "--log-interval", "400"),
        "mnist",
        ("torchvision",),
        MNIST,
        truth=("gpu.small_batch", "host.launch_bound", "gpu.optimizer_unfused"),
        options=("--probe",),
    ),
    Program(
        "mnist, checkpoint each step",
        examples("mnist"),
        MNIST_TRAIN,
        "mnist",
        ("torchvision",),
        MNIST,
        (
            Edit(
                "mnist/main.py",
                "        loss.backward()\n",
                (
                    "        loss.backward()\n        torch.save({'model': model.state_dict(),"
                    " 'optimizer': optimizer.state_dict()}, 'last.pt')\n"
                ),
            ),
        ),
        ("host.checkpoint_stall",),
    ),
    Program(
        "mnist, a log line to disk each step",
        examples("mnist"),
        MNIST_TRAIN,
        "mnist",
        ("torchvision",),
        MNIST,
        (
            Edit(
                "mnist/main.py",
                "        optimizer.step()\n",
                "        optimizer.step()\n        log(model, loss)\n",
            ),
            Edit(
                "mnist/main.py",
                "def train(",
                (
                    "def log(model, loss):\n    with open('log.txt', 'a') as file:\n        for"
                    " name, value in model.named_parameters():\n            file.write(f'{name}"
                    " {value.grad.norm().item()} {value.flatten().tolist()[:9000]}\\n"
                    "')\n        os.fsync(file.fileno())\n\n\ndef train("
                ),
            ),
            Edit("mnist/main.py", "import argparse\n", "import argparse, os\n"),
        ),
        ("host.logging_io", "host.python_overhead"),
    ),
    Program(
        "nanoGPT, evaluation each 20 steps",
        NANOGPT,
        (*SMALL_GPT, "--eval_interval=20", "--eval_iters=20"),
        data=TOKENS,
        truth=("host.eval_stall",),
        varies=CLOCK,
    ),
    Program(
        "vae, workers started each short epoch",
        examples("vae"),
        ("{python}", "main.py", "--epochs", "10"),
        "vae",
        ("torchvision",),
        {**MNIST, "vae/results": material.folder},
        (
            Edit(
                "vae/main.py",
                "kwargs = {'num_workers': 1, 'pin_memory': True} if use_accel else {}",
                "kwargs = {'num_workers': 2, 'multiprocessing_context': 'spawn'}",
            ),
        ),
        ("input.epoch_restart",),
    ),
)
