/* float32: the values themselves. kernels/reference/values.py. */
#define CODEC float32
#define CODEC_STRING "float32"
#define BYTES 4
#define WRITE(value) atoll_bits(value)
#define READ(bits) atoll_float(bits)
#include "value_codec.h"
