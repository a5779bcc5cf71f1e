import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FlightStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FLIGHT_STATUS_UNSPECIFIED: _ClassVar[FlightStatus]
    FLIGHT_STATUS_ARRIVED: _ClassVar[FlightStatus]
    FLIGHT_STATUS_CANCELLED: _ClassVar[FlightStatus]
    FLIGHT_STATUS_DIVERTED: _ClassVar[FlightStatus]

class PlaneType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PLANE_TYPE_UNSPECIFIED: _ClassVar[PlaneType]
    PLANE_TYPE_FIXED_WING_MULTI_ENGINE: _ClassVar[PlaneType]
    PLANE_TYPE_FIXED_WING_SINGLE_ENGINE: _ClassVar[PlaneType]
    PLANE_TYPE_ROTORCRAFT: _ClassVar[PlaneType]

class DaylightSaving(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DAYLIGHT_SAVING_UNSPECIFIED: _ClassVar[DaylightSaving]
    DAYLIGHT_SAVING_AMERICAN: _ClassVar[DaylightSaving]
    DAYLIGHT_SAVING_NONE: _ClassVar[DaylightSaving]
    DAYLIGHT_SAVING_UNKNOWN: _ClassVar[DaylightSaving]
FLIGHT_STATUS_UNSPECIFIED: FlightStatus
FLIGHT_STATUS_ARRIVED: FlightStatus
FLIGHT_STATUS_CANCELLED: FlightStatus
FLIGHT_STATUS_DIVERTED: FlightStatus
PLANE_TYPE_UNSPECIFIED: PlaneType
PLANE_TYPE_FIXED_WING_MULTI_ENGINE: PlaneType
PLANE_TYPE_FIXED_WING_SINGLE_ENGINE: PlaneType
PLANE_TYPE_ROTORCRAFT: PlaneType
DAYLIGHT_SAVING_UNSPECIFIED: DaylightSaving
DAYLIGHT_SAVING_AMERICAN: DaylightSaving
DAYLIGHT_SAVING_NONE: DaylightSaving
DAYLIGHT_SAVING_UNKNOWN: DaylightSaving

class Flight(_message.Message):
    __slots__ = ("scheduled_departure", "departure", "carrier", "number", "tail_number", "route", "status", "departure_delay_minutes", "arrival_delay_minutes", "air_minutes", "local_times")
    class Route(_message.Message):
        __slots__ = ("origin", "destination", "distance_miles")
        ORIGIN_FIELD_NUMBER: _ClassVar[int]
        DESTINATION_FIELD_NUMBER: _ClassVar[int]
        DISTANCE_MILES_FIELD_NUMBER: _ClassVar[int]
        origin: str
        destination: str
        distance_miles: int
        def __init__(self, origin: _Optional[str] = ..., destination: _Optional[str] = ..., distance_miles: _Optional[int] = ...) -> None: ...
    class LocalTimes(_message.Message):
        __slots__ = ("scheduled_departure", "scheduled_arrival", "departure", "arrival")
        SCHEDULED_DEPARTURE_FIELD_NUMBER: _ClassVar[int]
        SCHEDULED_ARRIVAL_FIELD_NUMBER: _ClassVar[int]
        DEPARTURE_FIELD_NUMBER: _ClassVar[int]
        ARRIVAL_FIELD_NUMBER: _ClassVar[int]
        scheduled_departure: int
        scheduled_arrival: int
        departure: int
        arrival: int
        def __init__(self, scheduled_departure: _Optional[int] = ..., scheduled_arrival: _Optional[int] = ..., departure: _Optional[int] = ..., arrival: _Optional[int] = ...) -> None: ...
    SCHEDULED_DEPARTURE_FIELD_NUMBER: _ClassVar[int]
    DEPARTURE_FIELD_NUMBER: _ClassVar[int]
    CARRIER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TAIL_NUMBER_FIELD_NUMBER: _ClassVar[int]
    ROUTE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DEPARTURE_DELAY_MINUTES_FIELD_NUMBER: _ClassVar[int]
    ARRIVAL_DELAY_MINUTES_FIELD_NUMBER: _ClassVar[int]
    AIR_MINUTES_FIELD_NUMBER: _ClassVar[int]
    LOCAL_TIMES_FIELD_NUMBER: _ClassVar[int]
    scheduled_departure: _timestamp_pb2.Timestamp
    departure: _timestamp_pb2.Timestamp
    carrier: str
    number: int
    tail_number: str
    route: Flight.Route
    status: FlightStatus
    departure_delay_minutes: int
    arrival_delay_minutes: int
    air_minutes: int
    local_times: Flight.LocalTimes
    def __init__(self, scheduled_departure: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., departure: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., carrier: _Optional[str] = ..., number: _Optional[int] = ..., tail_number: _Optional[str] = ..., route: _Optional[_Union[Flight.Route, _Mapping]] = ..., status: _Optional[_Union[FlightStatus, str]] = ..., departure_delay_minutes: _Optional[int] = ..., arrival_delay_minutes: _Optional[int] = ..., air_minutes: _Optional[int] = ..., local_times: _Optional[_Union[Flight.LocalTimes, _Mapping]] = ...) -> None: ...

class Weather(_message.Message):
    __slots__ = ("origin", "observed", "temperature_fahrenheit", "dew_point_fahrenheit", "relative_humidity", "wind", "precipitation_inches", "pressure_millibars", "visibility_miles")
    class Wind(_message.Message):
        __slots__ = ("direction_degrees", "speed_mph", "gust_mph")
        DIRECTION_DEGREES_FIELD_NUMBER: _ClassVar[int]
        SPEED_MPH_FIELD_NUMBER: _ClassVar[int]
        GUST_MPH_FIELD_NUMBER: _ClassVar[int]
        direction_degrees: int
        speed_mph: float
        gust_mph: float
        def __init__(self, direction_degrees: _Optional[int] = ..., speed_mph: _Optional[float] = ..., gust_mph: _Optional[float] = ...) -> None: ...
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FAHRENHEIT_FIELD_NUMBER: _ClassVar[int]
    DEW_POINT_FAHRENHEIT_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_HUMIDITY_FIELD_NUMBER: _ClassVar[int]
    WIND_FIELD_NUMBER: _ClassVar[int]
    PRECIPITATION_INCHES_FIELD_NUMBER: _ClassVar[int]
    PRESSURE_MILLIBARS_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_MILES_FIELD_NUMBER: _ClassVar[int]
    origin: str
    observed: _timestamp_pb2.Timestamp
    temperature_fahrenheit: float
    dew_point_fahrenheit: float
    relative_humidity: float
    wind: Weather.Wind
    precipitation_inches: float
    pressure_millibars: float
    visibility_miles: float
    def __init__(self, origin: _Optional[str] = ..., observed: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., temperature_fahrenheit: _Optional[float] = ..., dew_point_fahrenheit: _Optional[float] = ..., relative_humidity: _Optional[float] = ..., wind: _Optional[_Union[Weather.Wind, _Mapping]] = ..., precipitation_inches: _Optional[float] = ..., pressure_millibars: _Optional[float] = ..., visibility_miles: _Optional[float] = ...) -> None: ...

class Plane(_message.Message):
    __slots__ = ("tail_number", "year_built", "type", "manufacturer", "model", "engines", "engine", "seats", "speed_mph", "carriers")
    TAIL_NUMBER_FIELD_NUMBER: _ClassVar[int]
    YEAR_BUILT_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MANUFACTURER_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    SEATS_FIELD_NUMBER: _ClassVar[int]
    SPEED_MPH_FIELD_NUMBER: _ClassVar[int]
    CARRIERS_FIELD_NUMBER: _ClassVar[int]
    tail_number: str
    year_built: int
    type: PlaneType
    manufacturer: str
    model: str
    engines: int
    engine: str
    seats: int
    speed_mph: int
    carriers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tail_number: _Optional[str] = ..., year_built: _Optional[int] = ..., type: _Optional[_Union[PlaneType, str]] = ..., manufacturer: _Optional[str] = ..., model: _Optional[str] = ..., engines: _Optional[int] = ..., engine: _Optional[str] = ..., seats: _Optional[int] = ..., speed_mph: _Optional[int] = ..., carriers: _Optional[_Iterable[str]] = ...) -> None: ...

class Airport(_message.Message):
    __slots__ = ("code", "name", "position", "utc_offset_hours", "daylight_saving", "time_zone", "carriers")
    class Position(_message.Message):
        __slots__ = ("latitude", "longitude", "altitude_feet")
        LATITUDE_FIELD_NUMBER: _ClassVar[int]
        LONGITUDE_FIELD_NUMBER: _ClassVar[int]
        ALTITUDE_FEET_FIELD_NUMBER: _ClassVar[int]
        latitude: float
        longitude: float
        altitude_feet: int
        def __init__(self, latitude: _Optional[float] = ..., longitude: _Optional[float] = ..., altitude_feet: _Optional[int] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    UTC_OFFSET_HOURS_FIELD_NUMBER: _ClassVar[int]
    DAYLIGHT_SAVING_FIELD_NUMBER: _ClassVar[int]
    TIME_ZONE_FIELD_NUMBER: _ClassVar[int]
    CARRIERS_FIELD_NUMBER: _ClassVar[int]
    code: str
    name: str
    position: Airport.Position
    utc_offset_hours: int
    daylight_saving: DaylightSaving
    time_zone: str
    carriers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, code: _Optional[str] = ..., name: _Optional[str] = ..., position: _Optional[_Union[Airport.Position, _Mapping]] = ..., utc_offset_hours: _Optional[int] = ..., daylight_saving: _Optional[_Union[DaylightSaving, str]] = ..., time_zone: _Optional[str] = ..., carriers: _Optional[_Iterable[str]] = ...) -> None: ...

class Airline(_message.Message):
    __slots__ = ("carrier", "name", "flights_by_origin")
    class FlightsByOriginEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    CARRIER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    FLIGHTS_BY_ORIGIN_FIELD_NUMBER: _ClassVar[int]
    carrier: str
    name: str
    flights_by_origin: _containers.ScalarMap[str, int]
    def __init__(self, carrier: _Optional[str] = ..., name: _Optional[str] = ..., flights_by_origin: _Optional[_Mapping[str, int]] = ...) -> None: ...
