// Package handover passes open descriptors from one process of the program to the next.
//
// Two ways, for two occasions. At a planned upgrade the process executes the new program in its place
// (execve(2)): it stays the same process, with the descriptors that it leaves open and a description of them
// in a memory file. For restarts and crashes systemd keeps descriptors (sd_notify(3), FDSTORE=1) and
// passes them to the next process (sd_listen_fds(3)).
//
// It is independent of the purpose of the descriptors, and must not log.
package handover
