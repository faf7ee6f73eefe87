// Stand-in for libcudart.so.13: what torch imports and this device does not have. Each says its name and returns
// "not supported"; none pretends to have done something.
#include <cstdio>

#include "emulated.h"

#define REFUSE(name)                                                             \
  EMULATED_API int name() {                                                      \
    fprintf(stderr, "emulated device: " #name " is not supported\n");            \
    return 801; /* cudaErrorNotSupported */                                      \
  }

// ---- graphs

REFUSE(cudaDeviceGetGraphMemAttribute)
REFUSE(cudaDeviceSetGraphMemAttribute)
REFUSE(cudaGraphAddNode)
REFUSE(cudaGraphConditionalHandleCreate)
REFUSE(cudaGraphDebugDotPrint)
REFUSE(cudaGraphDestroy)
REFUSE(cudaGraphExecDestroy)
REFUSE(cudaGraphGetNodes)
REFUSE(cudaGraphInstantiateWithFlags)
REFUSE(cudaGraphLaunch)
REFUSE(cudaGraphNodeGetDependencies)
REFUSE(cudaGraphRetainUserObject)
REFUSE(cudaStreamBeginCapture)
REFUSE(cudaStreamBeginCaptureToGraph)
REFUSE(cudaStreamEndCapture)
REFUSE(cudaStreamUpdateCaptureDependencies)
REFUSE(cudaUserObjectCreate)
REFUSE(cudaUserObjectRelease)

// ---- memory pools

REFUSE(cudaDeviceGetDefaultMemPool)
REFUSE(cudaMemPoolGetAttribute)
REFUSE(cudaMemPoolSetAccess)
REFUSE(cudaMemPoolSetAttribute)
REFUSE(cudaMemPoolTrimTo)

// ---- libraries of kernels, and symbols in them

REFUSE(cudaGetSymbolAddress)
REFUSE(cudaKernelSetAttributeForDevice)
REFUSE(cudaLibraryGetKernel)
REFUSE(cudaLibraryLoadData)
REFUSE(cudaLibraryUnload)
REFUSE(cudaMemcpyToSymbol)
