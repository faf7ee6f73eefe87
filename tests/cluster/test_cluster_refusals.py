"""What a real Slurm cluster refuses, or its nodes do: said in its words, and nothing stays allocated."""

from __future__ import annotations

from pathlib import Path

from cluster_programs import SPAN, waits

from .conftest import ClusterLab


def test_more_nodes_than_there_are(lab: ClusterLab) -> None:
    lab.write(test_waits=waits())
    run = lab.on_slurm("test_waits.py", "--nodes", "3").wait()
    assert run.exit_code == 6
    assert "--nodes 3, and the pool has 2 nodes that work" in run.output


def test_a_job_too_big(lab: ClusterLab) -> None:
    lab.write(test_waits=waits())
    run = lab.on_slurm("test_waits.py", *SPAN, "--gpus-per-node", "9").wait()
    assert run.exit_code == 7, run.output
    assert "Requested node configuration is not available" in run.result("test_waits[4").message


def test_a_partition_that_does_not_exist(lab: ClusterLab) -> None:
    lab.write(test_waits=waits())
    run = lab.on_slurm("test_waits.py", *SPAN, "--partition", "nope").wait()
    assert run.exit_code == 9
    assert "Partition nope not found" in run.output


def test_an_image_without_pyxis(lab: ClusterLab) -> None:
    lab.write(test_waits=waits())
    run = lab.on_slurm("test_waits.py", *SPAN, "--image", "org/tests:1").wait()
    assert run.exit_code == 7, run.output
    message = run.result("test_waits[4").message
    assert "rejected: unrecognized option '--container-image=org/tests:1'" in message
    assert "--image needs Slurm's plugin pyxis, or --container docker" in message


def test_a_controller_that_does_not_answer(lab: ClusterLab) -> None:
    lab.write(test_waits=waits())
    lab.cluster.stop_controller()
    try:
        run = lab.on_slurm("test_waits.py", *SPAN).wait()
    finally:
        lab.cluster.start_controller()
    assert run.exit_code == 9, run.output
    assert "Slurm says: " in run.output
    assert "Unable to contact slurm controller" in run.output


def test_slurm_is_not_installed(lab: ClusterLab) -> None:
    lab.write(test_waits=waits())
    run = lab.on_slurm("test_waits.py", PATH="/nonexistent").wait()
    assert run.exit_code == 9
    assert "cannot run srun" in run.output


def test_other_sources_on_a_node(lab: ClusterLab) -> None:
    """The second node has another helper beside the tests: the same ids, another digest."""
    lab.write(test_waits=waits(), helper="VALUE = 1")
    other = lab.folder.parent / "other"
    other.mkdir()
    (other / "helper.py").write_text("VALUE = 2\n")
    node = lab.cluster.nodes[1]
    target = str(lab.folder / "helper.py")
    assert lab.cluster.on_node(node, "mount", "--bind", str(other / "helper.py"), target).returncode == 0
    try:
        run = lab.on_slurm("test_waits.py", *SPAN).wait()
    finally:
        lab.cluster.on_node(node, "umount", target)
    assert run.exit_code == 7, run.output
    message = run.result("test_waits[4").message
    assert "the tests on node n2 are not those on the client" in message


def test_another_version_on_a_node(lab: ClusterLab) -> None:
    import disttest

    lab.write(test_waits=waits())
    other = lab.folder.parent / "version"
    other.mkdir()
    real = Path(disttest.__file__)
    (other / "__init__.py").write_text(real.read_text().replace(disttest.__version__, "9.9.9"))
    node = lab.cluster.nodes[1]
    assert lab.cluster.on_node(node, "mount", "--bind", str(other / "__init__.py"), str(real)).returncode == 0
    try:
        run = lab.on_slurm("test_waits.py", *SPAN).wait()
    finally:
        lab.cluster.on_node(node, "umount", str(real))
    assert run.exit_code == 7, run.output
    assert f"disttest 9.9.9 on node n2, {disttest.__version__} on the client" in run.output


def test_ranks_without_gpus(lab: ClusterLab) -> None:
    """The scheduler grants one GPU to each node, and the tests have two ranks for each."""
    lab.write(test_waits=waits())
    arguments = (
        "test_waits.py",
        *SPAN,
        "--launcher",
        "slurm",
        "--device",
        "cuda",
        "--gpus-per-node",
        "1",
    )
    run = lab.start("run", *arguments, "--backend", "gloo").wait()
    assert run.exit_code == 7, run.output
    message = run.result("test_waits[4").message
    assert "was granted 1 GPUs (CUDA_VISIBLE_DEVICES=0), but the job has 2 ranks on it" in message
