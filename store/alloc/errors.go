package alloc

import (
	"errors"
	"fmt"
)

// ErrFull means that a range has no free value left.
var ErrFull = errors.New("range is full")

// RangeError means that a value lies outside of its range. The texts are those of Kubernetes
// (pkg/registry/core/service/ipallocator and portallocator).
type RangeError struct {
	// Value is an address; empty for a port, which Kubernetes does not repeat.
	Value string
	// Range is the valid range: a CIDR, or "first-last".
	Range string
}

// Error implements error.
func (e *RangeError) Error() string {
	if e.Value == "" {
		return fmt.Sprintf("provided port is not in the valid range. The range of valid ports is %s", e.Range)
	}
	return fmt.Sprintf("the provided IP (%s) is not in the valid range. The range of valid IPs is %s", e.Value, e.Range)
}

// HeldError means that another owner holds a value. It begins with Kubernetes' text and goes on
// with the owner's name.
type HeldError struct {
	// What is "IP" or "port".
	What string
	// Owner is "namespace/name" of the Service that holds the value.
	Owner string
	// Why is what prevents sharing the value; may be empty.
	Why string
}

// Error implements error.
func (e *HeldError) Error() string {
	text := fmt.Sprintf("provided %s is already allocated to Service %s", e.What, e.Owner)
	if e.Why != "" {
		text += ": " + e.Why
	}
	return text
}

// PoolError means that an owner may not have an address of its pool.
type PoolError struct {
	Value string
	Pool  string // where the value lies
	Asked string // the pool that the owner asks for; "": any
}

func (e *PoolError) Error() string {
	if e.Asked != "" {
		return fmt.Sprintf("%s lies in another pool than %s", e.Value, e.Asked)
	}
	return fmt.Sprintf("%s lies in the pool %s, whose serviceAllocation leaves the Service out", e.Value, e.Pool)
}
