// Whole files in and out. A file is replaced so that a reader, or a crash at any moment, sees the complete old or the
// complete new content.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "core/error.h"

namespace tapestry {

// Writes `bytes` to a temporary file beside `path`, fsyncs it, renames it over `path` and fsyncs the folder. On any
// error the temporary file is removed, `path` is untouched, and an Error names the path and the system's reason. A
// symbolic link is followed, and whatever is neither a regular file nor absent is refused. The mode is 0666 & ~umask.
void replace_file(const std::string& path, std::span<const std::byte> bytes);
void replace_file(const std::string& path, std::string_view text);

// All bytes of a file. Throws with the path and the system's reason.
std::string read_file(const std::string& path);

}  // namespace tapestry
