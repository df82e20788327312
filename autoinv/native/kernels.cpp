// The table in kernel.hpp, filled for one instruction set and dtype. Compiled once for each pair,
// with the set's flags, its name as AUTOINV_SET (the namespace) and the dtype as AUTOINV_REAL.
#include "inv.hpp"
#include "kernel.hpp"
#include "peak.hpp"

#define AUTOINV_JOIN(name, real) name##real
#define AUTOINV_NAME(real) AUTOINV_JOIN(kernels_, real)
#define AUTOINV_KERNEL_ENTRY(Function, name) name<AUTOINV_REAL>,

namespace autoinv {
namespace AUTOINV_SET {

extern const Kernels AUTOINV_NAME(AUTOINV_REAL);
const Kernels AUTOINV_NAME(AUTOINV_REAL) = {AUTOINV_KERNEL_TABLE(AUTOINV_KERNEL_ENTRY)};

}  // namespace AUTOINV_SET
}  // namespace autoinv
