// Which of the compiled instruction sets the processor can run.
#pragma once

namespace SPECDEC_VARIANT {

// Names of variants, best first, separated by spaces.
const char *runnable();

}  // namespace SPECDEC_VARIANT
