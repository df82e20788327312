// The kernels of one instruction set and dtype. Compiled once for each pair, with the set's flags,
// with its name as AUTOINV_SET (the namespace) and the dtype as AUTOINV_REAL.
#include "choice.hpp"
#include "gradient.hpp"
#include "kernel.hpp"
#include "peak.hpp"

#define AUTOINV_JOIN(name, real) name##real
#define AUTOINV_NAME(real) AUTOINV_JOIN(kernels_, real)

namespace autoinv {
namespace AUTOINV_SET {

extern const Kernels AUTOINV_NAME(AUTOINV_REAL);
const Kernels AUTOINV_NAME(AUTOINV_REAL) = {
    invert<AUTOINV_REAL>,
    gradient<AUTOINV_REAL>,
    measure_fma<AUTOINV_REAL>,
};

}  // namespace AUTOINV_SET
}  // namespace autoinv
