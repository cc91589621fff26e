// One step of a model, computed by several threads that pass through its phases together.
#pragma once

#include "model.h"

namespace SPECDEC_VARIANT {

// The workspace has room for the rows of the plan and for the threads.
void compute(Model &model, const specdec_step &step, const Plan &plan, int threads);

}  // namespace SPECDEC_VARIANT
