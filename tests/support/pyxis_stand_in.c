/* srun's options as pyxis adds them, and no container: a task is told in its environment what it was asked to run in. */
#include <stddef.h>

#include <slurm/spank.h>

SPANK_PLUGIN(pyxis_stand_in, 1)

enum { IMAGE, MOUNTS, WORKDIR, NO_HOME, OPTIONS };

static const char *const variables[OPTIONS] = {
    "STAND_IN_IMAGE", "STAND_IN_MOUNTS", "STAND_IN_WORKDIR", "STAND_IN_NO_HOME",
};
static const char *given[OPTIONS];

static int keep(int option, const char *value, int remote)
{
    (void)remote;
    given[option] = value ? value : "1";
    return ESPANK_SUCCESS;
}

struct spank_option spank_options[] = {
    {"container-image", "IMAGE", "the image", 1, IMAGE, keep},
    {"container-mounts", "SRC:DST", "folders of the node", 1, MOUNTS, keep},
    {"container-workdir", "PATH", "where the task starts", 1, WORKDIR, keep},
    {"no-container-mount-home", NULL, "the home of the image", 0, NO_HOME, keep},
    SPANK_OPTIONS_TABLE_END
};

int slurm_spank_task_init(spank_t task, int argc, char *argv[])
{
    (void)argc;
    (void)argv;
    for (int option = 0; option < OPTIONS; option++)
        if (given[option] && spank_setenv(task, variables[option], given[option], 1) != ESPANK_SUCCESS)
            return ESPANK_ERROR;
    return ESPANK_SUCCESS;
}
