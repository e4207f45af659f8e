/* What torch's Python library calls of libtorch_cuda.so while it is loaded, and for an object of torch.cuda.CUDAGraph. build.py compiles it, where torch has CUDA, with a function that throws for each
 * other name, and gives the library to torch in place of its own: the simulated device then finds the dispatch key CUDA empty, as in a CPU build. */
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace c10d {
bool (*&get_gil_checker())() {
  static bool (*checker)();
  return checker;
}
}  // namespace c10d

void nccl_options(void* place, bool) __asm__("_ZN4c10d16ProcessGroupNCCL7OptionsC1Eb");
void nccl_options(void* place, bool) { new (place) c10d::Backend::Options("nccl"); }

void begin_graph(void*, bool) __asm__("_ZN2at4cuda9CUDAGraphC1Eb");
void begin_graph(void*, bool) {}

void end_graph(void*) __asm__("_ZN2at4cuda9CUDAGraphD1Ev");
void end_graph(void*) {}
