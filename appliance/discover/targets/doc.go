// Package targets reads endpoints from a file, or from a URL, in the JSON of Prometheus' file_sd and http_sd: what any script can write.
//
// A file is read again when it, or a symbolic link to it, changed; a URL every 10 seconds, with If-None-Match. JSON has an end, so half a
// file is never taken. The YAML of file_sd has none.
package targets
