package sockets

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Owner is the program that a socket belongs to, "nginx (pid 812)", or "" when it cannot
// be seen: that takes the right to look into other users' processes (CAP_SYS_PTRACE), and
// the same PID namespace. It goes through all processes, so it is for few sockets.
func Owner(s Socket) string {
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return ""
	}
	for _, p := range processes {
		if _, err := strconv.Atoi(p.Name()); err != nil {
			continue
		}
		// A process that is gone, or that may not be looked at, is not the one.
		if inodes, err := inodesOf(p.Name()); err == nil && slices.Contains(inodes, s.inode) {
			name, _ := os.ReadFile(filepath.Join("/proc", p.Name(), "comm"))
			return fmt.Sprintf("%s (pid %s)", strings.TrimSpace(string(name)), p.Name())
		}
	}
	return ""
}

// inodesOf are the sockets that a process has open, by the numbers that tell them apart.
func inodesOf(process string) ([]uint32, error) {
	dir := filepath.Join("/proc", process, "fd")
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var inodes []uint32
	for _, f := range files {
		target, err := os.Readlink(filepath.Join(dir, f.Name()))
		if err != nil {
			continue // closed meanwhile
		}
		number, is := strings.CutPrefix(target, "socket:[")
		if n, err := strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 32); is && err == nil {
			inodes = append(inodes, uint32(n))
		}
	}
	return inodes, nil
}
