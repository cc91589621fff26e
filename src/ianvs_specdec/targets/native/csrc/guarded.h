// Exception barrier of the functions that C calls.
#pragma once

#include <cstdint>
#include <new>

#include "specdec.h"

namespace SPECDEC_VARIANT {

// No exception may leave a function that C calls. The only possible one is std::bad_alloc.
template <class Work>
int32_t guarded(Work work) {
  try {
    return work();
  } catch (const std::bad_alloc &) {
    return SPECDEC_NO_MEMORY;
  }
}

}  // namespace SPECDEC_VARIANT
