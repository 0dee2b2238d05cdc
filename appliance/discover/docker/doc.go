// Package docker asks a Docker daemon, or Podman's service, for the running containers with some labels.
//
// The stream of events is the trigger, a list of containers the answer, with one exception: for some 100 ms after its end, the list has
// a container as running, and no event follows. A container whose end was reported is left out until it starts.
package docker
