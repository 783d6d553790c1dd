// What the shared library shows: everything else is compiled with hidden visibility.
#pragma once

/// Put before the name of the namespace in every public header: what is declared there can be linked from
/// outside.
#define DDP_EXPORT [[gnu::visibility("default")]]
/// For classes that a public header only names: their members stay inside.
#define DDP_HIDDEN [[gnu::visibility("hidden")]]
