// Messages that cross the C ABI.
#pragma once

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

// Writes the message and returns 1, what a failing function returns.
__attribute__((format(printf, 3, 4))) static inline int32_t fail(char* error, int64_t size, const char* format, ...) {
  if (error && size > 0) {
    va_list values;
    va_start(values, format);
    vsnprintf(error, (size_t)size, format, values);
    va_end(values);
  }
  return 1;
}
