// What nccl.h and torch's headers include; the wheels' own needs nvcc.
#pragma once
#include <cuda_runtime_api.h>
