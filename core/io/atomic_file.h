// Replacing a file so that a reader, or a crash at any moment, sees the complete old or the complete new content.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace tapestry {

// Writes `bytes` to a temporary file beside `path`, fsyncs it, renames it over `path` and fsyncs the folder. On any
// error the temporary file is removed, `path` is untouched, and an Error names the path and the system's reason.
void replace_file(const std::string& path, std::span<const std::byte> bytes);
void replace_file(const std::string& path, std::string_view text);

}  // namespace tapestry
