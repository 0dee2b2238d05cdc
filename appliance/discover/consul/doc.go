// Package consul asks an agent of Consul for the instances of services (/v1/health/service), by long polls.
//
// The first 128 questions have a poll of their own: a server of Consul has 200 connections for each client. Those above have two polls
// together, of all checks and of the names of all services, and are asked again when something of their service changed there.
package consul
