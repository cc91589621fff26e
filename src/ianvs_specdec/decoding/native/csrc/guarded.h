// No exception may leave a function that C calls; the only ones are for memory.
#pragma once

#include <new>

#include "specdec.h"

namespace SPECDEC_VARIANT {

template <class Work>
int32_t guarded(Work work) {
  try {
    return work();
  } catch (const std::bad_alloc &) {
    return SPECDEC_NO_MEMORY;
  }
}

}  // namespace SPECDEC_VARIANT
