// Marks what the shared library exports; everything else has hidden visibility. Also checks the language
// level and the compiler, since every public header includes this one.
#pragma once

#if __cplusplus < 202002L
#error "ddp needs C++20: -std=c++20 for g++ and nvcc; CMake sets it for what links ddp::ddp"
#endif

#include <source_location>

#ifndef __cpp_lib_source_location
#error "ddp needs std::source_location, which this compiler lacks: take g++ 12, clang 16 or a later one"
#endif

/// Stands before the name of the namespace in every public header: other programs can link what is declared
/// there.
#define DDP_EXPORT [[gnu::visibility("default")]]
/// For classes that a public header only declares: their members are not exported.
#define DDP_HIDDEN [[gnu::visibility("hidden")]]
