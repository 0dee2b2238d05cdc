// Command image writes an OCI image of the program as an archive of an image layout: image PROGRAM ARCH VERSION SECONDS.
// SECONDS since 1970 is its time: the same arguments give the same bytes. No daemon and no network are needed.
package main
