"""A handful of rows in the form of the demo's source data."""

from __future__ import annotations

from pathlib import Path

_FILES = {
    "flights": """\
year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,origin,dest,air_time,distance,hour,minute,time_hour
2013,1,2,533,529,4,850,830,20,UA,2,N24211,LGA,IAH,227,1416,5,29,2013-01-02T10:00:00Z
2013,1,1,517,515,2,830,819,11,UA,1,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z
2013,1,3,NA,1545,NA,NA,1910,NA,AA,3,NA,LGA,IAH,NA,1389,15,45,2013-01-03T20:00:00Z
2013,1,4,1525,1530,-5,1934,1805,NA,AA,4,N14228,LGA,IAH,NA,1391,15,30,2013-01-04T20:00:00Z
""",
    "weather": """\
origin,year,month,day,hour,temp,dewp,humid,wind_dir,wind_speed,wind_gust,precip,pressure,visib,time_hour
EWR,2013,1,1,5,39.02,26.06,59.37,270,10.357019999999999,NA,0,1012,10,2013-01-01T10:00:00Z
LGA,2013,1,2,5,39.02,26.06,59.37,NA,NA,NA,0.2,NA,1.5,2013-01-02T10:00:00Z
LGA,2013,1,3,15,40,26.06,59.37,10,3.5,35.7,0,1000.5,10,2013-01-03T20:00:00Z
LGA,2013,1,4,15,40,26.06,59.37,10,3.5,35.7,0,1000.5,10,2013-01-04T20:00:00Z
""",
    "planes": """\
tailnum,year,type,manufacturer,model,engines,seats,speed,engine
N14228,1999,Fixed wing multi engine,BOEING,737-824,2,149,NA,Turbo-fan
N24211,NA,Rotorcraft,BELL,206B,1,5,112,Turbo-shaft
""",
    "airports": """\
faa,name,lat,lon,alt,tz,dst,tzone
04G,Lansdowne Airport,41.1304722,-80.6195833,1044,-5,A,America/New_York
IAH,George Bush Intercontinental,29.984433,-95.341442,97,-6,A,NA
""",
    "airlines": "carrier,name\nAA,American Airlines Inc.\nUA,United Air Lines Inc.\n",
}


def write_source(folder: Path) -> Path:
    """Write the CSV files into `folder`."""
    for name, text in _FILES.items():
        (folder / f"{name}.csv").write_text(text)
    return folder
