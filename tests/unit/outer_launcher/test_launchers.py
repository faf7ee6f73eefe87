"""Which variables tell that another launcher has started the command as one of several processes."""

from __future__ import annotations

from disttest.plugins.outer_launcher.hooks import find_outer_launchers


def test_ranks_of_other_launchers():
    torchrun = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "node17", "TORCHELASTIC_RUN_ID": "x"}
    srun = {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}

    found = find_outer_launchers({**torchrun, **srun, "SLURM_JOB_ID": "99", "HOME": "/"})

    assert {"torchrun": set(torchrun), "srun": set(srun)} == {
        name: set(names) for name, names in found.items()
    }
    mpi = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "PMI_SIZE": "2", "PMI_RANK": "1"}
    assert {"mpirun", "mpiexec"} == set(find_outer_launchers(mpi))


def test_one_process_is_no_rank_among_others():
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}

    assert find_outer_launchers(alone) == {}
    assert find_outer_launchers({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}) == {}


def test_a_size_or_an_address_alone_is_a_setting_of_the_tests():
    assert find_outer_launchers({"WORLD_SIZE": "4"}) == {}
    assert find_outer_launchers({"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}) == {}
    assert find_outer_launchers({"RANK": "1", "WORLD_SIZE": "many"}) == {}
