// What the two files of liboperators.so share.
#pragma once

namespace emulated {

// Whether this thread runs an operator of the emulated device at the moment.
bool& runs_on_host();

// Kernels for operators that torch has on GPUs only (operators_missing.cpp).
void add_missing_kernels();

}  // namespace emulated
