// Package nomad asks an agent of Nomad for the services that jobs register with it (provider = "nomad").
//
// A stream of events of each namespace (/v1/event/stream) is the trigger for all questions, /v1/service/NAME the answer. The stream has
// no answer before its first event, which may be long after it began, so it begins at the index of a list: nothing between is missed.
package nomad
