package listen

import (
	"errors"
	"fmt"
	"syscall"
)

// Advice returns the next step after a failure to listen on a port. sockets are the socket
// types for ss ("t", "tu"); alternative is what else the Service may get ("another node port").
func Advice(err error, port uint16, sockets, alternative string) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Sprintf("stop the program that has it (`ss -%slnp sport = :%d` names it), or give the Service %s", sockets, port, alternative)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "give this host the address, or leave it out of --nodeport-addresses"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return "raise the limit of open files (LimitNOFILE)"
	case errors.Is(err, syscall.EACCES):
		return "let the program bind low ports (CAP_NET_BIND_SERVICE), or give the Service " + alternative
	}
	return "it is tried again every few seconds"
}
