// Package providertest follows questions as svcctl discover does, and puts faults between a provider and its server. For tests only.
package providertest
