// The kernels of one instruction set. Compiled once a set, with its flags and with AUTOINV_SET as
// the name of its namespace.
#include "choice.hpp"
#include "gradient.hpp"
#include "kernel.hpp"
#include "peak.hpp"

#define AUTOINV_TEXT_OF(token) #token
#define AUTOINV_TEXT(token) AUTOINV_TEXT_OF(token)

namespace autoinv {
namespace AUTOINV_SET {

extern const KernelSet kernels;
const KernelSet kernels = {
    AUTOINV_TEXT(AUTOINV_SET),
    AUTOINV_FLAGS,
    {invert<float>, invert<double>},
    {gradient<float>, gradient<double>},
    {measure_fma<float>, measure_fma<double>},
};

}  // namespace AUTOINV_SET
}  // namespace autoinv
