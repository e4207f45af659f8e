"""Public reports of slow training, each rebuilt as a small program of the folder `programs`, with
what is true of it.

A line of a program that carries the comment `# slow` belongs to the cause. Not rebuilt: bf16 on a
CPU (pytorch #118499), because the fault does not appear on a CPU with bf16.
"""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    """`sources`: the issues, as owner/name#number. `truth`: the rules that name the cause. `also`:
    rules that may fire beside them because what they say is true of the program. `needs`: modules.
    `ranks`: processes. `line`: whether a finding can know the line. `memory`: the fault is growth,
    and the fix gains no time. `same_fix`: the suggestion of the finding does what `--fixed`
    does."""

    sources: tuple[str, ...]
    truth: tuple[str, ...]
    also: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    ranks: int = 1
    line: bool = True
    memory: bool = False
    same_fix: bool = False


HOST = ("host.slow_function", "host.python_overhead")
PASSES = ("host.slow_function", "host.avoidable_work")
LOADING = (
    "input.cpu_transform",
    "input.slow_storage",
    "input.ipc_collate",
    "input.too_few_workers",
)
"""Rules about the whole of loading: the part that takes most of it, with its line, is in the
finding."""

CASES: dict[str, Case] = {
    "anomaly": Case(
        ("yenchenlin/nerf-pytorch#42", "Lightning-AI/pytorch-lightning#12344"),
        ("host.debug_mode",),
        line=False,
    ),
    "matcher": Case(
        ("facebookresearch/detr#562", "open-mmlab/OpenPCDet#1057"), HOST, needs=("scipy",)
    ),
    "pandas_rows": Case(("yuzhu.run: pandas may be the bottleneck",), LOADING, needs=("pandas",)),
    "hdf5_chunks": Case(("h5py/h5py#1568", "h5py/h5py#2568"), LOADING, needs=("h5py",)),
    "lightning_log": Case(
        ("Lightning-AI/pytorch-lightning#1986",),
        ("host.logging_io",),
        needs=("lightning",),
        line=False,
        same_fix=True,
    ),
    "nested_lists": Case(
        ("huggingface/datasets#5841", "huggingface/datasets#7753"), LOADING, needs=("datasets",)
    ),
    "metric_grows": Case(
        ("Lightning-AI/torchmetrics#1823",), (*HOST, "host.slowing_down"), ("meta.not_steady",)
    ),
    "average": Case(("lucidrains/ema-pytorch#5", "ultralytics/yolov5#5241"), HOST),
    "histograms": Case(
        ("wandb/wandb#1819", "wandb/wandb#3701"),
        ("host.logging_io",),
        needs=("tensorboard",),
        same_fix=True,
    ),
    "python_thread": Case(("ultralytics/yolov3#1578",), ("host.gil",)),
    "metrics_reduced": Case(
        ("Lightning-AI/pytorch-lightning#17988",),
        ("comm.outside_backward",),
        ("comm.exposed",),
        ranks=2,
    ),
    "rank0_loads": Case(
        ("huggingface/accelerate#2162", "huggingface/accelerate#1245"),
        LOADING,
        ("comm.straggler", "comm.outside_backward"),
        ranks=2,
    ),
    "weighted_sampler": Case(
        ("pytorch/pytorch#94131", "ufoym/imbalanced-dataset-sampler#21"),
        ("input.epoch_restart",),
        line=False,
    ),
    "new_iterator": Case(("pytorch/pytorch#12831", "wmcnally/golfdb#22"), ("input.epoch_restart",)),
    "lock_in_reader": Case(("pytorch/pytorch#41064",), ("input.shared_lock",)),
    "one_by_one": Case(
        ("pytorch/pytorch#4959", "shenweichen/DeepCTR-Torch#70"), ("input.one_by_one",), line=False
    ),
    "lstm_by_hand": Case(
        ("pytorch/pytorch#20060",), (*HOST, "host.launch_bound"), ("gpu.small_batch",)
    ),
    "generation": Case(
        ("huggingface/trl#2610", "huggingface/trl#3574"), (*HOST, "host.eval_stall")
    ),
    "cycle": Case(("pytorch/pytorch#23900",), ("mem.leak_host",), LOADING, line=False, memory=True),
    "eval_with_graph": Case(("OpenNMT/OpenNMT-py#1141", "chrischoy/FCGF#15"), ("host.eval_stall",)),
    "graphs_joined": Case(
        ("pyg-team/pytorch_geometric#802", "pyg-team/pytorch_geometric#811"), LOADING
    ),
    "collector": Case(("huggingface/peft#2894", "Nerogar/OneTrainer#1459"), HOST),
    "dice_by_scipy": Case(("Lightning-AI/pytorch-lightning#3050",), HOST, needs=("scipy",)),
    "workers_copy": Case(
        ("pytorch/pytorch#13246",), ("mem.leak_host",), LOADING, line=False, memory=True
    ),
    "arrays_to_tensor": Case(("pytorch/pytorch#57467", "pfnet/pfrl#189"), HOST),
    "deepcopy_item": Case(("facebookresearch/detectron2#939", "Project-MONAI/MONAI#3000"), LOADING),
    "metrics_by_http": Case(
        ("mlflow/mlflow#1550", "Lightning-AI/pytorch-lightning#3393"), (*HOST, "host.logging_io")
    ),
    "smi_each_step": Case(
        ("Lightning-AI/pytorch-lightning#189", "Lightning-AI/pytorch-lightning#3257"), HOST
    ),
    "uncollate": Case(("BiomedSciAI/fuse-med-ml#267",), HOST),
    "npz_each_item": Case(("numpy/numpy#26498", "bowang-lab/MedSAM#30"), LOADING),
    "picture_each_step": Case(
        ("mit-han-lab/gan-compression#47", "chainer/chainer#2288"), HOST, needs=("PIL",)
    ),
    "anchors_in_forward": Case(("biubug6/Pytorch_Retinaface#131",), HOST),
    "mask_in_loss": Case(
        ("varsha33/LCL_loss#2", "HarryVolek/PyTorch_Speaker_Verification#33"), HOST
    ),
    "checkpoints": Case(("deepchem/deepchem#458",), ("host.checkpoint_stall",), same_fix=True),
    "environment": Case(("Farama-Foundation/HighwayEnv#103", "hsahovic/poke-env#381"), HOST),
    "listing_each_item": Case(("milesial/Pytorch-UNet#449",), LOADING),
    "gradient_hooks": Case(
        ("SeonghwanSeo/kfold#195", "Lightning-AI/pytorch-lightning#11471"), HOST
    ),
    "denormals": Case(
        ("pytorch/pytorch#23862", "chainer/chainer#2554"),
        ("host.slowing_down", *HOST),
        ("meta.not_steady",),
    ),
    "outputs_kept": Case(
        ("pai4451/ML2021#2", "dmlc/dgl#5302"), ("mem.leak_host",), line=False, memory=True
    ),
    "double": Case(
        ("gazprom-neft/seismiqb#19", "dingo-gw/dingo#55"), ("gpu.double_precision",), line=False
    ),
    "param_groups": Case(
        ("roboflow/rf-detr#1409",), (*HOST, "gpu.optimizer_unfused", "host.avoidable_work")
    ),
    "preconditioner": Case(("kozistr/pytorch_optimizer#100",), (*HOST, "host.avoidable_work")),
    "unlabelled_logits": Case(("cisnlp/ofa#1", "facebookresearch/pytext#957"), PASSES),
    "jacobian_rows": Case(("pytorch/pytorch#50584",), PASSES),
    "second_pass": Case(("feidfoe/learning-not-to-learn#5",), PASSES),
    "undetached_fake": Case(("pytorch/examples#116", "yunjey/pytorch-tutorial#56"), PASSES),
    "one_hot_input": Case(("yhs968/pyGRU4REC#4", "snowkylin/line#5"), PASSES),
    "tokens_each_epoch": Case(
        ("lucidrains/reformer-pytorch#143", "AnswerDotAI/ModernBERT#236"), LOADING
    ),
    "crop_after_colour": Case(
        ("weiliu89/caffe#830", "anilsathyan7/Portrait-Segmentation#33"), LOADING
    ),
    "csv_rewritten": Case(
        ("Lightning-AI/pytorch-lightning#17725",),
        (*HOST, "host.slowing_down", "host.logging_io"),
        ("meta.not_steady",),
    ),
    "replay_tree": Case(("AgileRL/AgileRL#541",), HOST),
    "training_set_again": Case(
        ("ludwig-ai/ludwig#1848", "ludwig-ai/ludwig#2856"),
        ("host.eval_stall",),
        ("input.one_by_one",),
    ),
    "drawn_until_new": Case(("massquantity/LibRecommender#11",), LOADING),
    "pass_thrown_away": Case(("mindee/doctr#1861", "Toni-SM/skrl#156"), PASSES),
    "frozen_by_optimizer": Case(
        ("Mayukhdeb/torch-dreams#14", "explosion/curated-transformers#69"), PASSES
    ),
    "losses_apart": Case(
        ("mosaicml/composer#1240", "jessemelpolio/non-stationary_texture_syn#15"), PASSES
    ),
    "padded_to_most": Case(("QData/TextAttack#737", "deepspeedai/DeepSpeedExamples#849"), PASSES),
    "hessian_rows": Case(("isayevlab/aimnetcentral#73",), PASSES),
    "best_copied": Case(("pytorch/pytorch#34765",), (*HOST, "host.checkpoint_stall")),
}
