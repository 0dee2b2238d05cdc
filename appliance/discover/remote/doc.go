// Package remote is what the providers over HTTP share: a client with credentials and bounds, and one stream of events for many questions.
package remote
